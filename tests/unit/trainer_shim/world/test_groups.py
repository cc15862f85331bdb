"""A world owns its groups: worlds may be side by side in one process, and nothing of ours asks for a default group."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import two_worlds
from made_worlds import made_world
from worker_harness import Zygote, tail
from world_stores import stores

import slurm_elastic.trainer_shim

SHIM = Path(slurm_elastic.trainer_shim.__file__).parent
RANKS = {"a": "0,2,0", "b": "1,0,1", "c": "-,1,-"}
"""Of each worker in the worlds 1, 2 and 3, where it is in them."""
SIZES = (2, 3, 2)


def expected(world: int, rank: int, gradients: int) -> dict[str, Any]:
    """What two_worlds.together() gives in a world."""
    size = SIZES[world - 1]
    return {
        "numbers": [[member, size] for member in range(size)],
        "total": size * (size + 1) / 2,
        "shared": f"of {world}",
        "said": [[world, member] for member in range(size)],
        "last": world if rank in (0, size - 1) else None,
        "moved": [0.0 if rank == size - 1 else float(rank)] * 3,
        "tally": [True, float(size)],
        "gradients": [(size + 1) / 2] * gradients,
    }


@pytest.mark.parametrize("shared", [False, True], ids=["two stores", "one store"])
def test_worlds_beside_each_other(zygote: Zygote, tmp_path: Path, shared: bool) -> None:
    """The second world, with a worker more and all ranks otherwise, forms beside the first. Both are used in turn, the
    first is left, the second goes on, and a third one forms beside that. A script's collectives go to the world in
    use."""
    with stores() as opened:
        held = [opened() for _ in range(1 if shared else 3)]
        ports = ",".join(str(held[min(number, len(held) - 1)].port) for number in range(3))
        for name, ranks in RANKS.items():
            words = [str(tmp_path / name), ports, ranks]
            zygote.spawn(f"{tmp_path}{name}", Path(two_worlds.__file__), words, {}, tmp_path / f"{name}.log")
        for name in RANKS:
            code = zygote.wait(f"{tmp_path}{name}")
            assert code == 0, tail((tmp_path / f"{name}.log").read_text())
    for name, ranks in RANKS.items():
        said = json.loads((tmp_path / name).read_text())
        first, second, third = ranks.split(",")
        models = len(two_worlds.strategies())
        together = {key: value for key, value in said.items() if isinstance(value, dict)}
        for key, value in together.items():
            rank = {"1": first, "2": second, "3": third}[key[0]]
            assert value == expected(int(key[0]), int(rank), models), key
        assert len(together) == (8 if first != "-" else 4)
        assert said["2 by the script"] == said["2 is in use"] == [int(second), 3, 3.0, 3.0]
        if first != "-":
            assert said["1 by the script"] == [int(first), 2, 2.0, 2.0]
            assert said["1 left"] == [True, True]


def test_worlds_that_follow_each_other_number_alike() -> None:
    """Compiled code names the groups of its world: those of a world like it have the same names. One that is there
    besides has others, and ends without theirs."""
    names = []
    for _ in range(2):
        with made_world() as world:
            own = dist.new_group([0])
            names.append([group.group_name for group in (world.group, world.owned.beside(), own)])
            with made_world() as other:
                beside = [other.group.group_name, other.owned.beside().group_name, dist.new_group([0]).group_name]
                assert dist.group.WORLD is other.group
            assert dist.group.WORLD is world.group and not set(beside) & set(names[-1])
            assert [dist.get_world_size(group) for group in (world.group, own)] == [1, 1]
            assert dist.new_group([0]).group_name not in [*names[-1], *beside]
        assert not dist.is_initialized() and not dist.distributed_c10d._world.pg_names
    assert names[0] == names[1]


# -- what names no group -----------------------------------------------------------------------------------------------

MAKES = {"init_process_group", "new_group", "new_subgroups", "init_device_mesh", "DeviceMesh"}
"""These ask for the default group however they are called."""
TAKES = {
    name
    for name, function in vars(dist).items()
    if inspect.isfunction(function) and {"group", "pg"} & set(inspect.signature(function).parameters)
} | {"DistributedDataParallel", "SyncBatchNorm", "convert_sync_batchnorm"}
"""These do where they are given none."""
GIVEN = {"group", "pg", "process_group"}


def unnamed(source: str) -> list[str]:
    """Calls, and other uses, of the default group; those where a world's groups are in use are left out."""
    found: list[str] = []

    def look(node: ast.AST, used: bool) -> None:
        if isinstance(node, ast.With):
            used = used or any(ast.unparse(item.context_expr).endswith(".used()") for item in node.items)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            takes = name in TAKES and not GIVEN & {keyword.arg for keyword in node.keywords}
            if (takes and not methods(node)) or (name in MAKES and not used):
                found.append(f"{node.lineno}: {ast.unparse(node)[:80]}")
        elif isinstance(node, ast.Attribute) and node.attr in ("WORLD", "default_pg"):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        for child in ast.iter_child_nodes(node):
            look(child, used)

    def methods(call: ast.Call) -> bool:
        """Of something else than torch's modules: of a group itself, say."""
        return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in (
            "dist", "torch.distributed", "distributed", "torch.nn.parallel", "nn.parallel", "funcol", "c10d",
        )  # fmt: skip

    look(ast.parse(source), False)
    return found


def test_every_collective_names_its_group() -> None:
    """Whose default group there is, a script's or another world's, is nothing to the job's own communication."""
    found = {str(path.relative_to(SHIM)): unnamed(path.read_text()) for path in sorted(SHIM.rglob("*.py"))}
    uses = {name: [use.partition(": ")[2] for use in places] for name, places in found.items() if places}
    assert uses == {
        # a world of torchrun's: the default group becomes its own
        "world/process_group.py": ["dist.init_process_group(backend(), rank=rank, world_size=size, timeout=COLLECTIV"],
        "world/groups.py": ["dist.group.WORLD"],
        # what a script means
        "training/guards/leftovers.py": ["dist.group.WORLD"],
    }


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("dist.all_reduce(x)", "dist.all_reduce(x, group=group)"),
        ("torch.distributed.all_gather(out, x, async_op=True)", "torch.distributed.all_gather(out, x, group=group)"),
        ("broadcast(x, 0)", "broadcast(x, 0, group=group)"),
        ("rank = dist.get_rank()", "rank = group.rank()"),
        ("dist.barrier()", "group.barrier()"),
        ("DistributedDataParallel(model)", "DistributedDataParallel(model, process_group=group)"),
        ("init_device_mesh('cpu', (2,))", "with world.groups.used():\n    init_device_mesh('cpu', (2,))"),
        ("group = dist.new_group([0, 1])", "with self.used():\n    group = dist.new_group([0, 1])"),
        ("x = dist.group.WORLD", "x = world.group"),
    ],
)
def test_a_use_of_the_default_group_is_found(wrong: str, right: str) -> None:
    """By the check above."""
    assert unnamed(wrong) and not unnamed(right)
