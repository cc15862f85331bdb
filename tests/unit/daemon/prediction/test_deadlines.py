"""What is said of a job's deadline and budget: at its submission, and while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_snapshots import Cluster
from plan_cases import NOW, World
from sample_history import ALICE, END, acted, rate

from slurm_elastic.daemon.models.priors import SHIPPED
from slurm_elastic.daemon.planner.decide import decide
from slurm_elastic.daemon.planner.running.state import Remaining
from slurm_elastic.daemon.prediction.advice import Ground
from slurm_elastic.daemon.prediction.deadlines import told
from slurm_elastic.daemon.prediction.sizes import PredictionInputs
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.model import Partition
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.db.rows import JobRow
from slurm_elastic.db.store import Store

SAMPLES = 10**6


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Store]:
    """Alice's job 11, chars, was measured at 4 to 24 GPUs, 16 samples each, and had a million samples to train."""
    with Store.open(f"sqlite:///{tmp_path}/elastic.db") as store:
        acted(store)
        last = store.reports.last(11)
        assert last is not None
        more = replace(last, at=last.at + 1.0, samples=SAMPLES // 2, samples_left=SAMPLES // 2)
        store.reports.submit(11, [more], END).result()
        store.programs.note(11, "alice:chars.py", "a100")
        yield store


def ground() -> Ground:
    snapshot = Cluster(nodes=8).snapshot()
    return Ground(replace(snapshot, partitions={"main": Partition("main")}), Site())


def of(store: Store, keys: str, gpus: str = "2-8", name: str = "chars", world: World | None = None) -> list[str]:
    """What is told of job 21 of alice's with this request: it waits since END, or runs as in the world."""
    request = f"elastic:gpus={gpus},batch=64-128{keys}"
    row = JobRow(21, "alice", ALICE, name, "lab", "main", request, True, "", "", END, None, None, "PENDING")
    running = None
    if world is not None:
        row = replace(row, state="RUNNING", submit_time=0.0, start_time=0.0)
        running = decide(world.inputs()).context.running_jobs[21]
    store.jobs.upsert(row)
    basis = PredictionInputs(Settings(), SHIPPED, running)
    return list(told(store, lambda *_: basis, ground(), 21, NOW if world is not None else END))


def test_before_it_runs_it_goes_by_the_youngest_run_of_its_name(history: Store) -> None:
    """What can be kept is said with its probability; where it can't, what would do: more GPUs than its request has."""
    at_8 = SAMPLES / rate(8)
    assert of(history, "") == []
    (said,) = of(history, f",deadline=now+{1.2 * at_8:.0f}")
    assert ": probably kept (P 100% with 8 GPUs), by job 11" in said
    said, would = of(history, f",deadline=now+{1.1 * at_8:.0f}", gpus="4")
    assert ": PROBABLY NOT KEPT (P 46% with 4 GPUs), by job 11" in said
    which = ", which its request does not accept there"
    assert would == f"what would do: 8 GPUs of type a100 in partition main (P 100%){which}"
    _, nothing = of(history, ",deadline=now+60")
    assert nothing == "nothing that can be asked for would do; more time would, or a larger budget"
    (said,) = of(history, ",budget=12", name="anew")
    assert said == "its budget of 12: not known until it has run for a while, as no earlier run was measured"


def test_a_budget_before_it_runs(history: Store) -> None:
    """Of GPU-hours, where nothing says their price."""
    at_4 = 4 * SAMPLES / rate(4) / 3600
    (said,) = of(history, f",budget={1.3 * at_4:.3f}", gpus="4")
    assert "probably kept" in said
    said, _ = of(history, f",budget={0.5 * at_4:.3f}", gpus="4")
    assert "PROBABLY NOT KEPT" in said


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (",deadline=now+31000", "its deadline, {}: it needs 4 GPUs from now on, and has 8"),
        (",deadline=now+22100", "its deadline, {}: it needs 8 GPUs from now on, and has 8"),
        (",deadline=now+13000", "its deadline, {}, CANNOT BE KEPT: at its fastest size it is done at {}, so it moves"),
        (",deadline=now+9000", "its deadline, {}, has passed: it moves nothing"),
        (",deadline=now+13600", "its deadline, {}: at its fastest size it is done at {}, with nothing to spare"),
        (",budget=10000", ""),
        (",budget=25", "its budget pays for at most 8 GPUs until its end"),
        (",budget=1", "its budget DOES NOT PAY for its end at any size"),
    ],
)
def test_of_a_job_that_runs_it_is_as_the_plan_has_it(history: Store, keys: str, said: str) -> None:
    """Three hours are left of it on the 8 GPUs that it has."""
    world = World(8)
    world.job(21, "n1 n2", f"elastic:gpus=2-32,batch=128{keys}")
    world.cluster.change(21, submit_time=0.0)
    world.state(21, remaining=Remaining(7200 * 256.0, 256.0, NOW))
    found = " ".join(of(history, keys, "2-32", world=world)[:1])
    assert bool(found) == bool(said) and all(part in found for part in said.split("{}"))
    world.state(21, remaining=None)
    if "passed" not in said:
        (unknown,) = of(history, keys, "2-32", world=world)
        assert unknown.endswith("not known, as its script does not say how long it trains (epochs, steps)")
