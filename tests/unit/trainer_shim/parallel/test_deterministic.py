"""join(deterministic=...): the same bits on any number of ranks, and what it does not accept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worker_harness import Start, Zygote, alone, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.data.sampling import Shares, Slicing, positions_of
from slurm_elastic.trainer_shim.numerics.batch import slice_of
from slurm_elastic.trainer_shim.parallel.reduction.fixed_order import Node, nodes_of, put, total

SCRIPT = (
    "--dtype",
    "float32",
    "--dropout",
    "0.3",
    "--clip",
    "0.3",
    "--epochs",
    "2",
    "--micro",
    "3",
    "--samples",
    "403",
)


@given(leaves=st.integers(1, 40), ranks=st.integers(1, 9), shards=st.integers(1, 40))
def test_the_order_of_additions_is_the_same_for_any_shares(leaves: int, ranks: int, shards: int) -> None:
    """Tally written down as text, with every bracket: one text whatever the number of ranks."""
    leaves = min(leaves, shards)

    def add(left: str, right: str) -> str:
        return f"({left}+{right})"

    def summed(ranks: int) -> str | None:
        everyone: dict[Node, str] = {}
        for rank in range(ranks):
            own: dict[Node, str] = {}
            for leaf in (leaf for leaf in slice_of(shards, ranks, rank) if leaf < leaves):
                put(own, leaf, str(leaf), add)
            assert sorted(own) == nodes_of(leaf for leaf in slice_of(shards, ranks, rank) if leaf < leaves)
            everyone |= own
        return total(everyone, leaves, add)

    text = summed(1)
    assert summed(ranks) == text and text is not None
    assert sorted(int(word) for word in text.replace("(", " ").replace(")", " ").replace("+", " ").split()) == list(
        range(leaves)
    )


@given(
    batch=st.integers(1, 60), ranks=st.integers(1, 9), shards=st.integers(1, 20), micro=st.none() | st.integers(1, 9)
)
def test_shards_do_not_depend_on_the_ranks(batch: int, ranks: int, shards: int, micro: int | None) -> None:
    """All ranks together compute the micro batches, in the shards, that one rank alone does."""
    alone = positions_of(0, batch, Slicing(batch, Shares(1, 0), micro, shards=shards))
    spread = [
        entry
        for rank in range(ranks)
        for entry in positions_of(0, batch, Slicing(batch, Shares(ranks, rank), micro, shards=shards))
    ]
    assert spread == alone
    assert sum(len(part) for part, *_ in alone) == batch


def test_any_number_of_ranks_gives_the_same_bits(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """1, 2, 3 and 4 ranks and a resized run, in float32, with dropout, clipping, accumulation and a short last step."""
    arguments = [*SCRIPT, "--deterministic", "6", "--epochs", "4"]
    expected = alone(zygote, tmp_path, *arguments)["model"]
    for names in ("ab", "abc", "abcd"):
        directory = tmp_path / names
        directory.mkdir()
        control = start(*arguments, "--pace", "0", directory=directory)
        control.start(*names)
        assert control.exits(*names) == [0] * len(names), control.story()
        assert all(torch.equal(value, expected[key]) for key, value in result(directory)["model"].items()), names
    control = start(*arguments, "--pace", "0", "--hold-from", "0")
    control.start("a")
    for names in ("abc", "bd", "d"):
        control.resize(*names)
    assert control.exits(*"abcd") == [0] * 4, control.story()
    control.checked(samples=403, epochs=4)
    assert all(torch.equal(value, expected[key]) for key, value in result(tmp_path)["model"].items())


def test_more_ranks_than_shards(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """Ranks without a shard wait for the others; the bits are the same."""
    arguments = [*SCRIPT, "--deterministic", "2"]
    control = start(*arguments, "--pace", "0")
    control.start(*"abc")
    assert control.exits(*"abc") == [0] * 3, control.story()
    expected = alone(zygote, tmp_path, *arguments)["model"]
    assert all(torch.equal(value, expected[key]) for key, value in result(tmp_path)["model"].items())


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[elastic.Job]:
    for name in ("SELASTIC_CONTROL", "SELASTIC_JOB_DIR", "SELASTIC_AUDIT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    job = elastic.join(batch=8, deterministic=4)
    yield job
    job.close()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def test_what_would_depend_on_the_ranks_is_refused(job: elastic.Job) -> None:
    """Running statistics, shards of parameters, adaptive micro batches: refused before the loop, by name."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises(TrainingError, match=r"'1' \(BatchNorm1d\) keeps statistics"):
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plain = torch.nn.Linear(3, 1)
    with pytest.raises(
        TrainingError,
        match=r"join\(deterministic=...\) does not go with job.wrap\(strategy='fsdp'\); accepted: job.wrap",
    ):
        job.wrap(plain, torch.optim.SGD(plain.parameters(), lr=0.1), strategy="fsdp")
    job.wrap(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    with pytest.raises(TrainingError, match=r"job.fit\(\) does not go with"):
        job.fit([], lambda batch: batch)
    with pytest.raises(TrainingError, match="deterministic='yes'"):
        elastic.join(batch=8, deterministic="yes")
    with pytest.raises(TrainingError, match="adascale"):
        elastic.join(batch=8, deterministic=True, lr="adascale")


class Counts(torch.nn.Module):
    """State that depends on the samples seen, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.linear(x)


def test_a_buffer_that_the_forward_pass_changes_is_noticed_in_the_first_step(job: elastic.Job) -> None:
    """Before any parameter has changed, with the buffer's name."""
    model = Counts()
    net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.ones(8, 3))
    for _ in job.epochs(1):
        for (x,) in job.loader(data):
            with pytest.raises(TrainingError, match="changes its buffer 'seen'"):
                job.step(net(x).mean())
            job.stop()
            break
    assert job.global_step == 0
