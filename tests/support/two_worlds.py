"""One worker in worlds that are in its process side by side: two_worlds.py OUT PORTS RANKS.

PORTS: of the stores of the worlds 1, 2 and 3; RANKS: this worker's rank in each, "-" where it is in none. World 2 forms
while world 1 is there, world 3 after it was left. What each world's ranks computed together goes to OUT, as JSON.
GPU_CHECK_IMPORT names a module to import first: a stand-in of CUDA and NCCL.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

if os.environ.get("GPU_CHECK_IMPORT"):
    importlib.import_module(os.environ["GPU_CHECK_IMPORT"])

from slurm_elastic.trainer_shim.control.worker_client import ComingWorld
from slurm_elastic.trainer_shim.data.sampling import Micro
from slurm_elastic.trainer_shim.parallel.ddp import Replicated
from slurm_elastic.trainer_shim.parallel.fsdp import Sharded
from slurm_elastic.trainer_shim.parallel.strategy import Strategy
from slurm_elastic.trainer_shim.world import groups, objects, p2p
from slurm_elastic.trainer_shim.world import process_group as worlds
from slurm_elastic.trainer_shim.world.agreement import Vote, VoteExchange
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS
from slurm_elastic.trainer_shim.world.process_group import Gate, World

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def formed(number: int, rank: int, size: int, port: int) -> World:
    gate = Gate(ComingWorld(number, rank, size, key="key", store=("127.0.0.1", port)))
    gate.arrive()
    gate.wait_open()
    return worlds.form(gate)


def strategies() -> list[Strategy]:
    torch.manual_seed(0)
    found: list[Strategy] = [Replicated(nn.Linear(2, 2).to(DEVICE), {})]
    if CUTS_ON_CPUS and DEVICE.type == "cpu":  # a stand-in may not have all that fully_shard needs
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(DEVICE)
        found.append(Sharded(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {}, True))
    return found


def connected(world: World, models: list[Strategy]) -> None:
    for model in models:
        model.connect(world)
        with torch.no_grad():
            for parameter in model.module.parameters():
                parameter.fill_(1.0)


def gradients(world: World, models: list[Strategy]) -> list[float]:
    """Of each model the last bias's: the mean of rank + 1 over the ranks."""
    found = []
    for model in models:
        model.expect(
            Micro(
                version=0, cursor=0, total=1, index=0, count=1, indices=(0,), measured=False, weight=1, rank_samples=1
            )
        )
        out = model(torch.ones(1, 2, device=DEVICE))
        reader = model.backward(out[:, 0].sum() * (world.rank + 1), Vote(holds=3))
        if reader is None or not reader().switch:
            raise AssertionError("not all ranks of this world have voted for the same")
        grad: Any = list(model.module.parameters())[-1].grad
        found.append(float(getattr(grad, "full_tensor", lambda grad=grad: grad)().sum()))
        for parameter in model.module.parameters():
            parameter.grad = None
    return found


def together(world: World, models: list[Strategy]) -> dict[str, Any]:
    """All that ranks of a world do together."""
    last, part = world.size - 1, torch.full((3,), float(world.rank))
    group = world.owned.beside()
    exchange = VoteExchange(world, Vote(holds=5, weight=1.0), said=7).reader()
    if exchange is None:
        raise AssertionError("no vote")
    p2p.move(world, {last: [part]} if world.rank == 0 else {}, {0: [part]} if world.rank == last else {}, 30)
    return {
        "numbers": worlds.gather(world, world.rank, world.size),
        "total": worlds.total(world, world.rank + 1.0),
        "shared": worlds.share(world, f"of {world.generation}" if world.rank == 0 else None),
        "said": objects.gather((world.generation, world.rank), group),
        "last": objects.send(world.generation if world.rank == 0 else None, 0, [last], world.group, 30),
        "moved": part.tolist(),
        "tally": [exchange().switch, exchange().weight],
        "gradients": gradients(world, models),
    }


def by_script() -> list[float]:
    """A script's own collectives, which name no group."""
    x = torch.ones((), device=DEVICE)
    dist.all_reduce(x)
    own = dist.new_group()
    y = torch.ones((), device=DEVICE)
    dist.all_reduce(y, group=own)
    return [dist.get_rank(), dist.get_world_size(), float(x), float(y)]


def main(out: str, ports: str, ranks: str) -> None:
    place = [None if rank == "-" else int(rank) for rank in ranks.split(",")]
    port, said = [int(number) for number in ports.split(",")], dict[str, Any]()
    first = formed(1, place[0], 2, port[0]) if place[0] is not None else None
    old, new = strategies(), strategies()
    if first is not None:
        connected(first, old)
        groups.use(first.groups)
        said["1 alone"] = together(first, old)
    second = formed(2, place[1] or 0, 3, port[1])
    if first is not None:
        said["1 by the script"] = by_script()
    connected(second, new)
    for turn in range(2):
        if first is not None:
            said[f"1, turn {turn}"] = together(first, old)
        said[f"2, turn {turn}"] = together(second, new)
    groups.use(second.groups)
    said["2 by the script"] = by_script()
    if first is not None:
        for model in old:
            model.disconnect()
        left = [weakref.ref(first.group), weakref.ref(first.owned.beside())]
        first.owned.leave(broken=True)
        gc.collect()
        said["1 left"] = [entry() is None for entry in left]
    said["2 goes on"] = together(second, new)
    said["2 is in use"] = by_script()
    if place[2] is not None:
        third = formed(3, place[2], 2, port[2])
        connected(third, old)
        said["3"] = together(third, old)
        for model in old:
            model.disconnect()
        third.owned.leave(broken=True)
    said["2 at last"] = together(second, new)
    Path(out).write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
