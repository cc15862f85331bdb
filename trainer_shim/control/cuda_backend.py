"""What moves CUDA tensors between workers: SELASTIC_CUDA_BACKEND, nccl or gloo.

NCCL refuses two workers on one GPU. gloo goes through host memory, slower, and lets workers share a GPU, or hold parts
of one (MIG, shards).
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_elastic.protocol.errors import ConfigError

NAME = "SELASTIC_CUDA_BACKEND"
ACCEPTED = ("nccl", "gloo")


def chosen(env: Mapping[str, str]) -> str:
    """One of ACCEPTED; nccl where nothing is said. Raises ConfigError."""
    value = env.get(NAME) or ACCEPTED[0]
    if value not in ACCEPTED:
        raise ConfigError(f"{NAME}={value} is not accepted; accepted: {', '.join(ACCEPTED)}")
    return value
