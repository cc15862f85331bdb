"""job.loader() where a script has its DataLoader: made before the loop, from that DataLoader, and counted on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, refused
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import slurm_elastic.trainer_shim as elastic

BATCHES = -(-len(DATA) // 8)


def own(made: list[elastic.Job], **options: Any) -> tuple[elastic.Job, Any, torch.optim.SGD]:
    job = elastic.join(**{"batch": 8, **options})
    made.append(job)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    net = job.replicate(model)
    job.keep(optimizer=optimizer)
    return job, net, optimizer


def step(net: Any, optimizer: torch.optim.SGD, batch: Any) -> None:
    optimizer.zero_grad()
    loss_of(net, batch).backward()
    optimizer.step()


class Numbers(Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.ones(3)


def doubled(samples: list[Any]) -> tuple[list[int], torch.Tensor]:
    return [2 * number for number, _ in samples], torch.stack([row for _, row in samples])


@pytest.mark.parametrize(
    ("shuffles", "options"),
    [
        (False, {}),
        (True, {"shuffle": True}),
        (True, {"sampler": DistributedSampler(Numbers(), num_replicas=2, rank=1)}),
        (False, {"sampler": DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False)}),
    ],
)
def test_a_data_loader_is_taken_as_it_is(made: list[elastic.Job], shuffles: bool, options: dict[str, Any]) -> None:
    """Its dataset, its collate_fn and whether it shuffles; all samples, by the job's batch, in each pass."""
    job, net, optimizer = own(made)
    loader = job.loader(DataLoader(Numbers(), batch_size=3, collate_fn=doubled, **options))
    assert len(loader) == 3 and isinstance(loader.dataset, Numbers)
    passes: list[list[int]] = []
    for _ in job.epochs(2):
        passes.append([])
        for numbers, rows in loader:
            assert len(numbers) in (8, 4)
            passes[-1] += numbers
            step(net, optimizer, (rows, torch.zeros(len(rows), 1)))
    in_order = list(range(0, 40, 2))
    assert [sorted(numbers) for numbers in passes] == [in_order, in_order]
    assert (passes[0] != in_order) == shuffles and (passes[0] != passes[1]) == shuffles


def test_what_is_given_beside_a_data_loader_counts(made: list[elastic.Job]) -> None:
    job, *_ = own(made)
    loader = job.loader(DataLoader(Numbers(), shuffle=True), shuffle=False, collate_fn=doubled)
    assert loader._shuffle is False and loader._options["collate_fn"] is doubled


def test_a_data_loader_with_an_order_of_its_own_is_refused(made: list[elastic.Job]) -> None:
    job, *_ = own(made)
    with refused("DataLoader with a WeightedRandomSampler, whose order it does not know"):
        job.loader(DataLoader(Numbers(), sampler=WeightedRandomSampler([1.0] * 20, 20)))
    with refused("DataLoader with a list, whose order"):
        job.loader(DataLoader(Numbers(), batch_sampler=[[1, 2], [3]]))


def test_batches_are_counted_on_after_a_restart(made: list[elastic.Job], tmp_path: Path) -> None:
    """loader.done is where this worker begins: in the middle of a pass, and at 0 in the next one."""
    for begins, until in ((0, 2), (2, 100)):
        job, net, optimizer = own(made, checkpoints=tmp_path, meant=["counted"])
        loader = job.loader(DATA)
        counted = []
        for epoch in job.epochs(2):
            for i, batch in enumerate(loader, loader.done):
                counted.append((epoch, i))
                step(net, optimizer, batch)
                if len(counted) == until:
                    break
            if len(counted) == until:
                break
        whole = [(epoch, i) for epoch in range(2) for i in range(BATCHES)]
        assert counted == whole[begins : begins + until]
        job.close()
        made.clear()


def test_a_loader_that_reads_ahead_is_refused(made: list[elastic.Job]) -> None:
    """As timm's prefetcher does: what a batch's step would be counted for is another batch."""
    job, net, optimizer = own(made)

    def ahead(loader: Any) -> Iterator[Any]:
        last = None
        for batch in loader:
            if last is not None:
                yield last
            last = batch
        yield last

    for _ in job.epochs(1):
        with refused("asked for before the model was called with the last one, by a loader around it that reads ahead"):
            for batch in ahead(job.loader(DATA)):
                step(net, optimizer, batch)
        job.stop()


def test_lists_and_dicts_are_kept_in_place(made: list[elastic.Job], tmp_path: Path) -> None:
    """A script's list of results, inside a function, is as long after a restart as before."""
    for epochs in (1, 2):
        job, net, optimizer = own(made, checkpoints=tmp_path)
        results: list[dict[str, float]] = []
        best = {"epoch": -1}
        job.keep(results=results, best=best, scaler=None)
        for epoch in job.epochs(epochs):
            for batch in job.loader(DATA):
                step(net, optimizer, batch)
            results.append({"epoch": epoch})
            best["epoch"] = epoch
        job.close()
        made.clear()
    assert results == [{"epoch": 0}, {"epoch": 1}] and best == {"epoch": 1}


def test_a_tensor_comes_back_to_where_it_was(made: list[elastic.Job]) -> None:
    """Also in a process whose own variable is a number yet: compared with a loss on the GPU it must be there."""
    job, *_ = own(made)
    variables = {"best": 0.0, "seen": 0}
    job.keep(variables, "best", "seen")
    part = job._session.state.parts["Variables1"]
    part.load_state_dict({"best": torch.ones(1), "seen": 1, "(devices)": {"best": "meta"}})
    assert variables["seen"] == 1 and isinstance(variables["best"], torch.Tensor) and variables["best"].is_meta


@pytest.mark.parametrize(
    ("count", "first"),
    [
        (enumerate, 1),
        (lambda loader: enumerate(loader, 1), 2),
        (lambda loader: enumerate(loader, loader.done), 1),
        (lambda loader: zip(itertools.count(loader.done), loader, strict=False), 1),
        (lambda loader: enumerate(tqdm(loader, disable=None)), 1),
        (lambda loader: enumerate(tqdm(map(list, loader)), 2), 3),
        (lambda loader: tqdm(enumerate(tqdm(loader))), 1),
    ],
)
def test_enumerate_goes_on_within_a_pass(made: list[elastic.Job], count: Any, first: int) -> None:
    """Where a pass is gone on with, as a worker does that joins in it: as for those that have seen its beginning."""
    job, net, optimizer = own(made)
    job.begin_at(step=1, samples=8, in_epoch=8)
    numbers = []
    for _ in job.epochs(1):
        for number, batch in count(job.loader(DATA)):
            numbers.append(number)
            step(net, optimizer, batch)
    assert numbers == [first, first + 1] and job.global_step == 3


def handed_on(loader: Any) -> Iterator[Any]:
    yield from loader


@pytest.mark.parametrize(
    ("around", "name"),
    [
        (lambda loader: zip(range(9), loader, strict=False), "zip()"),
        (lambda loader: itertools.islice(loader, 2), "islice()"),
        (lambda loader: enumerate(handed_on(loader)), "handed_on()"),
        (lambda loader: zip(range(9 - loader.done), loader, strict=False), ""),
        (enumerate, ""),
        (handed_on, ""),
    ],
)
def test_what_counts_around_a_loader_and_is_not_moved_is_named_once(
    made: list[elastic.Job], capsys: pytest.CaptureFixture[str], around: Any, name: str
) -> None:
    """In the first step of a training, also of one process; none that asks what is done."""
    job, net, optimizer = own(made)
    loader = job.loader(DATA)
    for _ in job.epochs(2):
        for item in around(loader):
            step(net, optimizer, item[1] if isinstance(item[0], int) else item)
    said = [line for line in capsys.readouterr().out.splitlines() if "stands between" in line]
    assert [line.partition(" ")[0] for line in said] == [name][: bool(name)]
