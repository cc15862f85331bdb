"""What is said of a size: which ones are listed, and what it costs a running job to come there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from plan_cases import NOW, World, seen

from slurm_elastic.daemon.models.priors import SHIPPED
from slurm_elastic.daemon.planner.running.eligibility import running_job
from slurm_elastic.daemon.prediction.sizes import Measured, PredictionInputs, listed, model_of, next_ends, predicted
from slurm_elastic.protocol.answers.predict import PredictedSize
from slurm_elastic.protocol.request import parse

REQUEST = "elastic:gpus=2-16,batch=240-256"


def rows(request: str = REQUEST, sizes: Sequence[int] = (), **state: object) -> dict[int, PredictedSize]:
    """Of a job on two nodes with four GPUs each."""
    world = World()
    world.job(1, "n1 n2", request)
    world.cluster.change(1, asked_per_node=4)
    world.state(1, **state)
    inputs = world.inputs()
    running = running_job(inputs.roster.elastic[1], inputs.states[1], world.settings, NOW)
    basis = PredictionInputs(world.settings, SHIPPED, running, 4)
    measured = Measured(parse(request), (seen(8),), None, 256)
    sizes = sizes or parse(request).sizes()
    return {row.gpus: row for row in predicted(model_of(measured, basis), measured, sizes, basis, NOW)}


def test_a_wide_range_is_thinned() -> None:
    """All sizes where they are few or asked for; else a ladder and what is known, no further than anyone believes."""
    wide = parse("elastic:gpus=1-512,batch=512-65536")
    assert listed(parse("elastic:gpus=2-8,batch=64-512,step=2"), [], 0, 0) == [2, 4, 6, 8]
    assert listed(wide, [12], 0, 0) == [1, 2, 4, 8, 12, 16]
    assert listed(wide, [12], 3, 6) == [3, 4, 5, 6]
    assert listed(parse("elastic:gpus=1-3,batch=4-4"), [], 0, 0) == [1, 2]


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [((2, 64), [4, 8, 12, 24]), ((9, 0), [12]), ((20, 0), []), ((6, 6), [6]), ((1, 3), [1, 2, 3]), ((30, 64), []),
     ((1, 1_000_000), [4, 8, 12, 24])],
)  # fmt: skip
def test_what_if_asks_beyond_the_request(asked: tuple[int, int], sizes: list[int]) -> None:
    """As far apart as its own, as long as the batch can be shared out; where none of those is asked for, any."""
    request = parse("elastic:gpus=8-16,step=4,batch=24")
    assert listed(parse("elastic:gpus=8-16,step=4,batch=16-256"), [], 2, 32) == [4, 8, 12, 16, 20, 24, 28, 32]
    assert listed(request, [], *asked) == sizes


def test_a_size_that_the_request_does_not_accept_says_so() -> None:
    found = rows(sizes=(16, 20))
    assert (found[16].note, found[20].note, found[20].pause_s) == ("", "the request does not accept it", None)
    assert found[20].samples_per_s > found[16].samples_per_s


def test_the_pause_is_the_jobs_own_where_it_was_measured() -> None:
    """Else the one of the settings, and said to be that; at the present size there is none."""
    measured, assumed = rows(pause_s=0.7), rows()
    assert (measured[16].pause_s, measured[16].pause_from, measured[16].mechanism) == (0.7, "measured", "companion")
    assert (measured[4].pause_s, measured[4].mechanism) == (0.7, "shrink")
    assert (assumed[16].pause_s, assumed[16].pause_from) == (World().settings.assumed_pause_s, "assumed")
    assert (measured[8].pause_s, measured[8].note) == (None, "now")


def test_a_size_that_nothing_leads_to_says_so() -> None:
    """Half a node of the base cannot be given up; by requeue it can be reached, at the cost of one."""
    assert rows()[2].note == "out of reach from what it has"
    restarted = rows(request=REQUEST + ",via=shrink+companion+requeue", requeue_s=33.0)[2]
    assert (restarted.mechanism, restarted.pause_s, restarted.pause_from) == ("requeue", 33.0, "measured")


def test_nodes_are_those_it_has_and_those_that_growth_fills() -> None:
    """8 GPUs on two nodes of four: 16 need two more, 10 one more, 4 fill one."""
    found = rows()
    assert {gpus: found[gpus].nodes for gpus in (4, 8, 10, 16)} == {4: 1, 8: 2, 10: 3, 16: 4}


def test_whose_end_frees_gpus() -> None:
    """Of other jobs on nodes that it could get, by their time limits; not of its own companion, of what has no limit,
    or of what lies elsewhere."""
    world = World(8)
    world.job(1, "n1", REQUEST)
    for job_id, nodes, left in ((2, "n2 n3", 900.0), (3, "n4", 300.0), (4, "n5", None), (5, "n8", 60.0)):
        world.cluster.run(job_id, nodes, time_left_s=left)
    world.cluster.companion(6, 1, "n6")
    world.cluster.change(6, time_left_s=10.0)
    inputs = world.inputs()
    job = running_job(inputs.roster.elastic[1], inputs.states[1], world.settings, NOW)
    assert job is not None
    ends = next_ends(world.cluster.jobs.values(), [f"n{number}" for number in range(1, 8)], job)
    assert [(end.at - world.cluster.at, end.gpus, end.job_id) for end in ends] == [(300.0, 4, 3), (900.0, 8, 2)]
