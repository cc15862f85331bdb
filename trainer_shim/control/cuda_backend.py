"""What moves CUDA tensors between workers: SELASTIC_CUDA_BACKEND, nccl or gloo. And which GPUs a worker sees:
SELASTIC_DEVICES, its own or those of its Slurm job on the node.

NCCL refuses two workers on one GPU. gloo goes through host memory, slower, and lets workers share a GPU, or hold parts
of one (MIG, shards).
"""

from collections.abc import Mapping

from slurm_elastic.protocol.errors import ConfigError

NAME = "SELASTIC_CUDA_BACKEND"
ACCEPTED = ("nccl", "gloo")
DEVICES = "SELASTIC_DEVICES"


def parts_of_gpus(env: Mapping[str, str]) -> str:
    """By what this job holds parts of GPUs, of which two may be one GPU's; "" if nothing says so."""
    if any(word.startswith("MIG-") for word in env.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        return "MIG"
    if env.get("SLURM_SHARDS_ON_NODE", "0") != "0":
        return "shards"
    return "MPS" if "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in env else ""


def chosen(env: Mapping[str, str]) -> str:
    """One of ACCEPTED; where nothing is said gloo for parts of GPUs, else nccl. Raises ConfigError."""
    value = env.get(NAME) or ("gloo" if parts_of_gpus(env) else "nccl")
    if value not in ACCEPTED:
        raise ConfigError(f"{NAME}={value} is not accepted; accepted: {', '.join(ACCEPTED)}")
    return value


def devices(env: Mapping[str, str]) -> str:
    """own, or node: each worker sees all GPUs that its Slurm job has on the node, and LOCAL_RANK says which is its own.

    Raises ConfigError; node takes one GPU for each worker."""
    value = env.get(DEVICES) or "own"
    if value not in ("own", "node"):
        raise ConfigError(f"{DEVICES}={value} is not accepted; accepted: own, node")
    if value == "node" and chosen(env) == "gloo":
        raise ConfigError(
            f"{DEVICES}=node is not accepted where workers hold parts of GPUs, or share them; accepted: own"
        )
    return value


def own_device(env: Mapping[str, str]) -> int:
    """The number of a worker's GPU among those that it sees."""
    one_visible = "SELASTIC_CONTROL" in env and devices(env) == "own"
    return 0 if one_visible else int(env.get("LOCAL_RANK") or 0)
