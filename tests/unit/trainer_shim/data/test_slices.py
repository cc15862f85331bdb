"""Slices and micro batches in multiples of what a script can take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_jobs import loss_of, refused, wrapped
from torch.utils.data import TensorDataset
from worker_harness import SCRIPT, Control, Zygote, alone, difference, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.data.sampling import Micro, MicroBatches, Shares, Slicing, order
from slurm_elastic.trainer_shim.data.shard_streams import StreamMicroBatches

EPOCHS = SCRIPT.with_name("own_epochs_train.py")


def steps_of(plans: list[MicroBatches]) -> list[list[Micro]]:
    """For each step of the plans to their end, all ranks' micro batches."""
    steps = []
    while not plans[0].exhausted:
        micros = [next(plan) for plan in plans]
        step = list(micros)
        for plan, micro in zip(plans, micros, strict=True):
            step += [next(plan) for _ in range(micro.count - 1)]
        steps.append(step)
    return steps


@settings(max_examples=400)
@given(
    samples=st.integers(1, 300),
    ranks=st.integers(1, 7),
    each=st.integers(2, 8),
    units=st.integers(1, 12),
    micro=st.one_of(st.none(), st.integers(1, 5)),
    options=st.fixed_dictionaries(
        {"halve": st.booleans(), "together": st.booleans(), "shards": st.sampled_from((0, 3))}
    ),
    shards=st.booleans(),
)
def test_every_micro_batch_is_a_multiple(
    samples: int, ranks: int, each: int, units: int, micro: int | None, options: dict[str, int], shards: bool
) -> None:
    """Also in the short last step, in measured steps, in deterministic ones and where a rank computes for company; of
    the pass fewer than one multiple is left out, and no sample is trained on twice."""
    samples += each
    limit = micro * each if micro else None
    slicings = [Slicing(units * each, Shares(ranks, rank, each), limit, **options) for rank in range(ranks)]
    if shards:
        sizes = [samples // 3, samples - samples // 3]
        plans: list[MicroBatches] = [StreamMicroBatches(sizes, [1, 0], 0, (1, 0, ()), slicing) for slicing in slicings]
    else:
        plans = [MicroBatches(order(samples, 5, 0, 0, shuffle=True), 0, slicing) for slicing in slicings]
    seen: Counter[int] = Counter()
    for step in steps_of(plans):
        for part in step:
            assert len(part.indices) % each == 0 and part.indices
            assert limit is None or len(part.indices) <= limit
            if micro == 1:
                assert len(part.indices) == each  # static shapes
            seen.update(part.own)
        assert sum(part.weight for part in step) == step[0].total
    assert sum(seen.values()) == len(seen) == samples - samples % each


def test_three_ranks_get_even_slices(zygote: Zygote, begin_epochs: Control, tmp_path: Path) -> None:
    """1 -> 3 -> 2 workers, 20 samples a step: a script that can't take odd slices trains on, as in one process."""
    control = begin_epochs
    control.start("a")
    for names in ("abc", "bc"):
        control.resize(*names)
    assert control.exits(*"abc") == [0] * 3, control.story()
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, "--slice", "2", script=EPOCHS)
    assert ours["samples"] == theirs["samples"] == 3 * 202
    assert difference(ours, theirs) < 1e-12
    told = [log.read_text().count("the last 1 of its order are left out") for log in tmp_path.glob("[abc].log")]
    assert sum(told) == 1


@pytest.fixture
def begin_epochs(zygote: Zygote, tmp_path: Path) -> Iterator[Control]:
    control = Control(zygote, tmp_path, ["--slice", "2", "--hold-from", "0", "--pace", "0.01"], EPOCHS)
    yield control
    control.close()


def test_a_single_process_leaves_out_what_fills_no_slice(
    made: list[elastic.Job], capsys: pytest.CaptureFixture[str]
) -> None:
    """21 samples, 2 at a time: 20 of them, other ones in each pass; schedules are counted in what is trained on."""
    job, net, _ = wrapped(made, slice=2, lr="none")
    data = TensorDataset(torch.arange(21.0)[:, None].repeat(1, 3), torch.zeros(21, 1))
    left = []
    for _ in job.epochs(3):
        seen: list[float] = []
        for x, y in job.loader(data):
            assert len(x) % 2 == 0
            seen += x[:, 0].tolist()
            job.step(loss_of(net, (x, y)))
        left.append(set(range(21)) - set(seen))
    assert [len(out) for out in left] == [1, 1, 1]
    assert len(set.union(*left)) > 1
    assert job.samples == 60 and job.steps(3, 21) == 8
    assert capsys.readouterr().out.count("of each pass over 21 samples the last 1 of its order are left out") == 1


def test_what_the_request_says_counts(made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """join() need not repeat it; it may ask for less, not for more."""
    monkeypatch.setenv("SELASTIC_SLICE", "4")
    job, *_ = wrapped(made)
    assert job._tuning.each == 4
    job.close()
    job, *_ = wrapped(made, slice=2)
    assert job._tuning.each == 2
    job.close()
    with refused(r"join\(slice=8\) does not fit the elastic request's slice=4"):
        elastic.join(batch=8, slice=8)


def test_a_batch_that_comes_from_outside_is_cut_to_multiples(made: list[elastic.Job]) -> None:
    job, *_ = wrapped(made, slice=4, max_batch=32)
    assert job._tuning.accept(31, starting=False) == (28, "")
    assert job._tuning.accept(33, starting=False) == (32, "")
    job._tuning.agreed = 7  # what fits
    assert job._tuning.limit() == 4


def test_what_is_no_multiple_is_refused(made: list[elastic.Job]) -> None:
    for options, named in (
        ({"batch": 9, "slice": 2}, r"join\(batch=9\) is not a multiple of slice=2"),
        ({"batch": 8, "micro_batch": 3, "slice": 2}, r"join\(micro_batch=3\) is not a multiple of slice=2"),
        ({"batch": 8, "slice": 0}, r"join\(slice=0\) is not accepted"),
    ):
        with refused(named):
            elastic.join(**options)
    job, *_ = wrapped(made, slice=4)
    for _ in job.epochs(1):
        with refused("a dataset of 3 samples, fewer than slice=4"):
            job.loader(TensorDataset(torch.zeros(3)))
        break


def test_a_share_in_multiples(made: list[elastic.Job]) -> None:
    """In a loop of the script's own each share says it: one may be of samples, another of micro batches."""
    job = elastic.join(batch=8)
    made.append(job)
    model = torch.nn.Linear(3, 1)
    net, optimizer = job.replicate(model), torch.optim.SGD(model.parameters(), lr=0.1)
    job.keep(optimizer=optimizer)
    while job.next(1):
        with refused(r"job.share\(9, slice=2\) is not accepted"):
            job.share(9, slice=2)
        assert job.share(8, slice=4).positions == range(8)
        net(torch.zeros(8, 3)).sum().backward()
        optimizer.step()
