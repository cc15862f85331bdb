"""`selastic advise` over a real store: choices with lines for a script, or one sentence; what comes first of several
sizes, how probable it is, and what one more measurement would be worth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_snapshots import Cluster
from hypothesis import given
from hypothesis import strategies as st
from sample_history import BOB, END, acted, rate

from slurm_elastic.daemon.models.priors import SHIPPED
from slurm_elastic.daemon.prediction.advice import (
    Aim,
    Ground,
    Option,
    advise,
    probability,
    ranked,
    with_waits,
    worth_measuring,
)
from slurm_elastic.daemon.prediction.sizes import PredictionInputs
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.model import Partition
from slurm_elastic.daemon.slurm.site import PartitionRules, Site
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import request
from slurm_elastic.protocol.answers.predict import Advice
from slurm_elastic.protocol.api.routes import AdviseQuery
from slurm_elastic.protocol.errors import NotAllowed, NotFound, RequestError

HOUR = 3600.0
SAMPLES = 10**6
ONE = Option("gpu", "a100", 1, 1, 64, 10 * HOUR, 0.02, True, 1.0)
FOUR = Option("gpu", "a100", 4, 1, 256, 4 * HOUR, 0.3, False, 4.0)

seconds = st.floats(60.0, 1e6)
options = st.builds(
    Option,
    st.sampled_from(["gpu", "spot"]),
    st.sampled_from(["a100", "v100"]),
    st.integers(1, 64),
    st.just(1),
    st.just(64),
    seconds,
    st.floats(0.01, 1.0),
    st.booleans(),
    st.floats(0.0, 100.0),
    st.lists(st.floats(0.0, 1e5), min_size=1, max_size=3).map(tuple),
)
aims = st.builds(Aim, st.just(math.inf) | seconds, st.just(math.inf) | st.floats(0.1, 1e4), st.floats(0.5, 0.99))


@given(st.lists(options, min_size=1, max_size=8), aims)
def test_nothing_is_cheaper_at_the_price_of_probability(several: list[Option], aim: Aim) -> None:
    """What comes first is as probable as asked for where anything is, then the cheapest, or fastest, of those that are;
    else nothing is more probable, or it is nearest to what was asked for."""
    rated = ranked(several, aim)
    best, likely = rated[0]
    enough = [one for one, said in rated if said >= aim.confidence]
    assert (likely >= aim.confidence) == bool(enough)
    most = max(said for _, said in rated)
    assert likely in (most, max(likely, aim.confidence)) or most < 0.1
    if enough and aim.deadline_s < math.inf:
        assert best.cost == min(one.cost for one in enough)
    elif enough and aim.budget < math.inf:
        assert best.until_s == min(one.until_s for one in enough)
    assert all(0.0 <= said <= 1.0 for _, said in rated)


@given(options, aims, st.floats(1.0, 10.0))
def test_more_time_or_money_is_never_less_probable(one: Option, aim: Aim, more: float) -> None:
    """Nor is a shorter wait."""
    said = probability(one, aim)
    assert probability(one, replace(aim, deadline_s=aim.deadline_s * more, budget=aim.budget * more)) >= said
    assert probability(replace(one, waits_s=tuple(wait / more for wait in one.waits_s)), aim) >= said
    assert probability(one, Aim()) == 1.0


def test_the_middle_is_even_and_what_was_not_measured_is_less_sure() -> None:
    """At the limit itself p is a half; beyond it the same doubt is worth less where nothing was measured."""
    assert probability(FOUR, Aim(4 * HOUR)) == pytest.approx(0.5) == probability(ONE, Aim(10 * HOUR))
    sure, guessed = (replace(ONE, doubt=0.3, measured=measured) for measured in (True, False))
    assert probability(sure, Aim(20 * HOUR)) > probability(guessed, Aim(20 * HOUR)) > 0.8
    assert probability(ONE, Aim(20 * HOUR, budget=9.0)) < 0.01 < 0.99 < probability(ONE, Aim(20 * HOUR, budget=11.0))


def test_the_three_questions() -> None:
    """Before a deadline the cheap one while it is in time, within a budget the fast one, else by cost times time."""
    assert ranked([FOUR, ONE], Aim(24 * HOUR))[0][0] is ONE
    assert ranked([FOUR, ONE], Aim(8 * HOUR, confidence=0.8))[0][0] is FOUR
    assert ranked([FOUR, ONE], Aim(budget=100.0))[0][0] is FOUR
    assert ranked([FOUR, ONE], Aim(budget=10.5))[0][0] is ONE
    assert ranked([FOUR, ONE], Aim())[0][0] is FOUR  # 16 x 4 before 10 x 10


def test_a_measurement_is_proposed_where_it_would_change_the_answer() -> None:
    """Where the size that was not measured may keep the deadline, or may not; never one that was measured."""
    assert worth_measuring([ONE, FOUR], Aim(24 * HOUR)) is None
    assert worth_measuring([ONE, FOUR], Aim(4.5 * HOUR)) is None  # nothing else is nearer to it
    eight = Option("gpu", "a100", 8, 1, 512, 3 * HOUR, 0.02, True, 8.0)
    assert worth_measuring([ONE, FOUR, eight], Aim(4.5 * HOUR)) is FOUR
    assert worth_measuring([ONE, replace(FOUR, measured=True), eight], Aim(4.5 * HOUR)) is None


def test_waits_are_those_of_the_nearest_size_in_the_partition() -> None:
    """What Slurm would not start is gone; another partition's, or another kind's, wait says nothing."""
    two = replace(ONE, gpus=2)
    spot = replace(ONE, partition="spot")
    old = replace(ONE, gpu_type="v100")
    known = {("gpu", "a100", 4): [60.0, 120.0], ("gpu", "a100", 1): ()}
    found = with_waits([ONE, two, FOUR, spot, old], known)
    assert [(one.partition, one.gpus, one.waits_s) for one in found] == [
        ("gpu", 2, (60.0, 120.0)),
        ("gpu", 4, (60.0, 120.0)),
        ("spot", 1, (0.0,)),
        ("gpu", 1, (0.0,)),
    ]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Store]:
    """Job 11 of alice's was measured at 4 to 24 GPUs of an a100, 16 samples each; at a batch of 128 it runs on."""
    with Store.open(f"sqlite:///{tmp_path}/elastic.db") as store:
        acted(store)
        job = store.jobs.get(11)
        assert job is not None
        store.jobs.upsert(replace(job, request="elastic:gpus=2-32,batch=128"))
        store.programs.note(11, "alice:chars.py", "a100")
        yield store


def ground(**rules: PartitionRules) -> Ground:
    """Eight nodes of four a100 in main; these partitions' rules."""
    snapshot = Cluster(nodes=8).snapshot()
    return Ground(replace(snapshot, partitions={"main": Partition("main")}), Site(partitions=rules))


def asked(
    store: Store, where: Ground | None = None, job_id: int = 11, viewer: Viewer | None = None, **query: object
) -> Advice:
    basis = PredictionInputs(Settings(), SHIPPED)
    words = AdviseQuery(**{"samples": SAMPLES, **query})  # type: ignore[arg-type]
    return advise(store, lambda *_: basis, where or ground(), job_id, viewer or Viewer(0, admin=True), words, END)


def test_the_cheapest_before_a_deadline_has_its_lines(history: Store) -> None:
    """It is the smallest size that is in time; its request keeps the job from being smaller; a measured one is sure."""
    answer = asked(history, deadline=END + 1.1 * SAMPLES / rate(8))
    best = answer.choices[0]
    assert (best.partition, best.gpu_type, best.gpus, best.nodes, best.basis) == ("main", "a100", 8, 2, "measured")
    assert best.probability >= 0.95 and best.cost == pytest.approx(8 * SAMPLES / rate(8) / HOUR, rel=0.05)
    assert best.script[0] == "#SBATCH --partition=main"
    assert best.script[1].startswith("#SBATCH --nodes=2 --gres=gpu:a100:4 --ntasks-per-node=1 --time=")
    comment = best.script[2].removeprefix("#SBATCH --comment=")
    assert request.parse(comment) == request.parse("elastic:gpus=8-32,batch=128")
    assert "measured on a100: 4, 8, 16, 20, 24 GPUs, 163 reports" in answer.notes
    assert "first is the cheapest that is in time, with P >= 95%" in answer.notes
    assert all(one.probability < 0.95 or one.cost >= best.cost for one in answer.choices)


@pytest.mark.parametrize("deadline", [END, END - 60.0])
def test_a_deadline_that_has_passed_is_refused(history: Store, deadline: float) -> None:
    """Now is too late, too."""
    with pytest.raises(NotFound, match=rf"deadline={deadline:.0f} has passed; accepted: a time after {END:.0f}"):
        asked(history, deadline=deadline)


def test_a_budget_and_a_deadline_nobody_can_keep(history: Store) -> None:
    """Within a budget the fastest; what can't be done is said, and the most probable comes first."""
    budget = 1.2 * 8 * SAMPLES / rate(8) / HOUR
    best = asked(history, budget=budget).choices[0]
    assert best.cost <= budget and best.probability >= 0.95
    answer = asked(history, deadline=END + 60)
    assert answer.choices[0].probability < 0.1
    assert answer.choices[0].run_s == min(one.run_s for one in answer.choices)
    assert "NOTHING keeps to that with P >= 95%: first is what comes nearest" in answer.notes
    assert "first is the best value, the least product of cost and time" in asked(history).notes


def test_prices_are_slurms_or_the_settings(history: Store) -> None:
    """The billing weights of a partition times the UsageFactor; prices of the settings count before them."""
    plain, size = asked(history, deadline=END + 1e9).choices[0], 2
    assert plain.gpus == size
    billed = ground(main=PartitionRules(billing={"gres/gpu": 2.0, "gres/gpu:a100": 1.0}))
    for where, factor, price in ((billed, 0.5, 1.5), (replace(billed, prices=("a100=4", "main:a100=5")), 0.5, 5.0)):
        answer = asked(history, where, deadline=END + 1e9, factor=factor)
        assert answer.choices[0].cost == pytest.approx(price * plain.cost)
    assert "COST: the prices of gpu_prices; each choice is of one kind of GPU" in answer.notes


def test_partitions_that_do_not_take_it_are_no_choice(history: Store) -> None:
    """By their lists, their most nodes and their longest time; a kind of GPU never measured is named."""
    for rules in (PartitionRules(state="DOWN"), PartitionRules(max_time_s=60.0), PartitionRules(min_nodes=99)):
        with pytest.raises(NotFound, match="job 11 accepts nothing that was measured and can start"):
            asked(history, ground(main=rules))
    assert {one.nodes for one in asked(history, ground(main=PartitionRules(max_nodes=2))).choices} <= {1, 2}
    cluster = Cluster(nodes=8)
    cluster.nodes["n8"] = replace(cluster.nodes["n8"], gpu_type="h100", partitions=("main", "new"))
    answer = asked(history, replace(ground(), snapshot=cluster.snapshot()))
    assert "no choice, as it never ran there: GPUs of type h100" in answer.notes
    assert {one.gpu_type for one in answer.choices} == {"a100"}


def test_another_kind_of_gpu_is_a_choice_where_the_program_ran_there(history: Store) -> None:
    """By the youngest run of the program on it; preemptible partitions are named."""
    history.programs.note(12, "alice:chars.py", "h100")
    cluster = Cluster(nodes=8)
    for name in ("n7", "n8"):
        cluster.nodes[name] = replace(cluster.nodes[name], gpu_type="h100", partitions=("spot",))
    partitions = {"main": Partition("main", tier=2), "spot": Partition("spot", preempt_mode="REQUEUE")}
    where = replace(ground(), snapshot=replace(cluster.snapshot(), partitions=partitions), prices=("h100=0.1",))
    answer = asked(history, where)
    assert (answer.choices[0].partition, answer.choices[0].gpu_type) == ("spot", "h100")
    assert "Slurm may preempt jobs in spot, which P does not count" in answer.notes


def test_waits_count_and_are_the_forecasts_or_slurms(history: Store) -> None:
    """The forecast's moments are as probable as each other; what Slurm said counts where nothing is foretold."""
    deadline = END + 1.1 * SAMPLES / rate(8)
    told = asked(history, deadline=deadline, waits="main/a100/8/36000")
    assert not told.foretold and {one.wait_s for one in told.choices} == {36000.0}
    assert told.choices[0].probability < 0.01
    assert all(one.gpus != 8 for one in asked(history, deadline=deadline, waits="main/a100/8/").choices)
    foretold = replace(ground(), would_start=lambda job, seconds: (END, END, END + 1e6))
    answer = asked(history, foretold, deadline=deadline, waits="main/a100/8/36000")
    assert answer.foretold and answer.choices[0].probability == pytest.approx(2 / 3, abs=0.02)
    for wrong in ("main", "main/8/1", "main//x/1", "main//0/1", "main//8/-1", f"main//8/{10**10}", f"main//{10**9}/1"):
        with pytest.raises(RequestError, match=r"waits=.* is not accepted; accepted: PARTITION/TYPE/GPUS/SECONDS"):
            asked(history, waits=wrong)


def test_how_long_the_training_is(history: Store) -> None:
    """As a run that is over trained, or one that goes on says; else it has to be said."""
    done = sum(row.samples for row in history.allocations.rows(11))
    assert asked(history, samples=0).notes[0] == f"the training: {done} samples"
    with pytest.raises(NotFound, match=r"job 12 has not said how long its training is; accepted: --samples=N"):
        asked(history, job_id=12, samples=0)
    last = history.reports.last(12)
    assert last is not None
    history.reports.submit(12, [replace(last, at=END, step=last.step + 1, samples_left=500)], END).result()
    history.programs.note(12, "bob:digits.py", "a100")
    assert asked(history, job_id=12, samples=0).notes[0] == f"the training: {last.samples + 500} samples"


def test_only_owner_and_admins_are_answered(history: Store) -> None:
    with pytest.raises(NotAllowed, match="belongs to another user"):
        asked(history, viewer=Viewer(BOB))
