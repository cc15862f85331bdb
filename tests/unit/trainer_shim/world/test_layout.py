"""The ranks of a world by the axes of its layout."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import audited
import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_jobs import refused
from worker_harness import Start, Zygote, alone, difference, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.parallel.choice import FSDP, check_together
from slurm_elastic.trainer_shim.world.layout import Layout


@given(st.lists(st.integers(1, 4), max_size=3), st.integers(1, 5))
def test_each_rank_has_a_place_of_its_own(sizes: list[int], replicas: int) -> None:
    """In the order of nested loops over the axes, replicas first: those of a replica are neighbours."""
    layout = Layout(tuple((f"axis{number}", size) for number, size in enumerate(sizes)))
    ranks = replicas * layout.unit
    assert tuple(layout.sizes(ranks).values()) == (replicas, *sizes)
    wanted = list(itertools.product(*map(range, (replicas, *sizes))))
    assert [tuple(layout.places(rank)[name] for name in layout.sizes(ranks)) for rank in range(ranks)] == wanted
    layout.check(ranks)


@pytest.mark.parametrize(
    "unit",
    [{}, 2, {"tp": 0}, {"tp": True}, {"tp": 1.5}, {"dp": 2}, {"tp": 2, "dp": 2}, {2: 2}, {"": 2}, [("tp", 2)]],
)
def test_what_is_no_unit_is_refused(unit: Any) -> None:
    with refused(r"join\(unit=.*\) is not accepted; accepted: \{'tp': N\}"):
        elastic.join(batch=4, unit=unit)


def test_axes_go_with_what_can_use_them() -> None:
    """A group that is asked for, a plan for one axis, fully_shard: each names what is accepted."""
    with refused("does not fit the elastic request's group=6; accepted: a multiple of 4"):
        Layout.of({"rows": 2, "columns": 2}, "6")
    two = Layout.of({"rows": 2, "columns": 2}, "8")
    with refused(r"join\(unit={'rows': 2, 'columns': 2}\) needs a multiple of 4 workers, and this world has 6"):
        two.check(6)
    with refused(
        r"join\(unit=...\) does not go with job.wrap\(strategy='fsdp'\); accepted: job.wrap\(strategy='ddp'\)"
    ):
        check_together("mean", 0, two, "equal", FSDP)


def test_a_replica_in_blocks_over_two_axes_equals_one_process(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """(dp, rows, columns) = (1, 2, 2) -> (2, 2, 2) -> (1, 2, 2) with other ranks: each weight in blocks of rows by
    columns, which a rank that joins gets from those that have them."""
    arguments = ["--clip", "0.05", "--epochs", "2"]
    control = start("--hold-from", "0", "--grid", "2", *arguments)
    control.start(*"abcd")
    for names in ("abcdefgh", "efgh"):
        control.resize(*names)
    assert control.exits(*"abcdefgh") == [0] * 8, control.story()
    found = audited.check(control.audit, samples=1003, epochs=2)
    assert found.ok and found.worlds == 3, found
    assert difference(result(tmp_path), alone(zygote, tmp_path, *arguments)) < 1e-12
