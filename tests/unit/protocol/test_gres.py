"""GPUs in Slurm's lists of generic resources: one reader for all who read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.client.commands.sbatch import starting_gpus
from slurm_elastic.daemon.slurm.model import Size
from slurm_elastic.daemon.slurm.pending_resize import asked_size, size_words
from slurm_elastic.protocol.gres import gres_gpus
from slurm_elastic.trainer_shim.allocation.slurm_job import parse_job


@pytest.mark.parametrize(
    "text, counts",
    [
        ("gpu:4", {"": 4}),
        ("gpu", {"": 1}),
        ("gpu:a100:4", {"a100": 4}),
        ("gpu:a100", {"a100": 1}),
        ("gres:gpu:2", {"": 2}),
        ("gres/gpu:a100:2", {"a100": 2}),
        ("gres/gpu=2", {"": 2}),
        ("gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2,4),shard:8", {"a100": 2, "v100": 1}),
        ("gpu:a100:0(IDX:N/A)", {"a100": 0}),
        ("gpu:(null):2(IDX:0-1),shard:(null):0(0/8)", {"": 2}),
        ("gpu:(null):0(IDX:N/A)", {"": 0}),
        ("gpu:4(S:0-7),gpu_mem:80G,gpumem:7", {"": 4}),
        ("shard:8,nvme:2", {}),
        ("gpu:a100:no_consume:4,gpu:v100:2", {"v100": 2}),  # as slurm.conf may have a node
        ("(null)", {}),
        ("", {}),
    ],
)
def test_generic_resources(text: str, counts: dict[str, int]) -> None:
    """The forms in which 22.05 to 26.05 write GPUs."""
    assert gres_gpus(text) == counts


@given(st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,12}", fullmatch=True), st.integers(1, 16))
def test_a_gpu_type_is_read_alike_wherever_it_stands(kind: str, count: int) -> None:
    """2080ti, 4090, a100-sxm.80g: in what a job asks for, what it is given in the queue, and what it holds."""
    assert gres_gpus(f"gres:gpu:{kind}:{count}") == {kind: count}
    fields = {"JobId": "7", "TresPerNode": f"gres:gpu:{kind}:{count}", "NumNodes": "1"}
    assert asked_size(fields).gpus_per_node == count
    assert f"Gres=gpu:{kind}:9" in size_words(fields, Size(1, 9))
    held = parse_job(f"JobId=7 JobState=RUNNING Nodes=n1 CPU_IDs=0-3 Mem=64 GRES=gpu:{kind}:{count}(IDX:0)", 7, _one)
    assert (held.gpu_type, held.gpus) == (kind, (count,))
    for options in ([("--gpus", f"{kind}:{count}")], [("--gres", f"gpu:{kind}:{count}")]):
        assert starting_gpus(options) == count


@pytest.mark.parametrize(
    "options",
    [
        [("--gres", "gpu:a100:$N")],
        [("--gpus", "a100:2,v100:2")],
        [("--gres", "shard:4")],
        [("--gpus-per-node", "many")],
    ],
)
def test_what_does_not_say_plainly_how_many_gpus(options: list[tuple[str, str | None]]) -> None:
    """A variable of the shell, several types, another resource, no number."""
    assert starting_gpus(options) is None


def _one(text: str) -> tuple[str, ...]:
    return (text,)
