"""Whatever comes in whatever order, the supervisor stays sane: a property, without any process."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.protocol.messages import Piece, Resize
from slurm_elastic.trainer_shim.allocation.pieces.events import (
    AgentLost,
    AgentUp,
    CompanionGranted,
    CompanionRefused,
    Event,
    JobTerminating,
    NodeSuspending,
    NodeTerminating,
    ResizeCame,
    StepEnded,
)
from slurm_elastic.trainer_shim.allocation.pieces.table import NodeKey
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import RecordGeneration, Spawn
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, SupervisorContext
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerExit, WorkerLost, WorkerMessage

KEYS: list[NodeKey] = [(10, "n1"), (10, "n2"), (11, "n3"), (11, "n3"), (12, "n3")]
KINDS = ["ready", "ready", "ready", "store", "quiesced", "running", "running", "saved", "done", "failed", "report"]


@dataclasses.dataclass(frozen=True)
class FromWorker:
    """Something that one of the workers then there does: a message, a lost line, or its end."""

    which: int
    what: str
    late: int
    code: int = 0
    signal: int = 0

    def event(self, context: SupervisorContext) -> Event:
        names = sorted(context.workers) or ["10.n1.0"]
        name = names[self.which % len(names)]
        if self.what == "exit":
            return WorkerExit(name, self.code, self.signal)
        if self.what == "lost":
            return WorkerLost(name)
        fields = {"generation": context.generation - self.late, "step": self.which, "survived": self.late == 0}
        return WorkerMessage(name, {"type": self.what, **fields})


EVENTS = st.one_of(
    st.builds(AgentUp, st.sampled_from(KEYS), st.just(("0", "1")), other_build=st.sampled_from(["", "", "9.9"])),
    st.builds(AgentLost, st.sampled_from(KEYS)),
    st.builds(StepEnded, st.integers(1, 4), st.integers(0, 1)),
    st.builds(NodeTerminating, st.sampled_from(KEYS)),
    st.builds(NodeSuspending, st.sampled_from(KEYS)),
    st.builds(FromWorker, st.integers(0, 9), st.sampled_from(KINDS), st.sampled_from([0, 0, 0, 1])),
    st.builds(
        FromWorker,
        st.integers(0, 9),
        st.sampled_from(["exit", "exit", "lost"]),
        st.just(0),
        st.sampled_from([0, 1, 75]),
        st.sampled_from([0, 9]),
    ),
    st.builds(
        ResizeCame,
        st.builds(
            Resize,
            st.integers(1, 4),
            st.just(10),
            st.sampled_from([(BASE,), (Piece(10, "base", ("n1",), 2),), (BASE, COMPANION)]),
            st.sampled_from([(), (SHAPE,)]),
            st.sampled_from([2, 4, 6]),
            st.sampled_from([0, 32]),
            st.just("batch"),
            st.just(5.0),
            st.booleans(),
        ),
    ),
    st.integers(1, 4).map(lambda id: CompanionGranted(id, 0, dataclasses.replace(COMPANION, slurm_job_id=10 + id))),
    st.builds(CompanionRefused, st.integers(1, 4), st.just(0), st.just("no")),
    st.builds(JobTerminating, st.just(5.0), st.booleans()),
)


@settings(max_examples=300)
@given(st.booleans(), st.lists(st.one_of(EVENTS, st.floats(0.1, 50.0)), max_size=60))
def test_no_order_of_events_confuses_it(started: bool, events: list[Event | FromWorker | float]) -> None:
    """Whatever comes in whatever order: one exit at most, generations only grow, never two workers on one GPU."""
    drive = Drive()
    if started:
        drive.up()
    generations = [remember.generation for remember in drive.every(RecordGeneration)]
    for event in events:
        if isinstance(event, float):
            drive.wait(event)
        else:
            drive(event.event(drive.context) if isinstance(event, FromWorker) else event)
        alive = [w for w in drive.context.workers.values() if not w.exited]
        assert len({(worker.agent, worker.index) for worker in alive}) == len(alive)
        generations += [remember.generation for remember in drive.new(RecordGeneration)]
        assert drive.context.mode is Mode.ENDED or drive.context.pieces[0].nodes[0] == "n1"
        assert (drive.context.mode is Mode.ENDED) == bool(drive.exits())
    assert generations == sorted(set(generations))
    assert len(drive.exits()) <= 1
    names = [spawn.worker for spawn in drive.every(Spawn)]
    assert len(names) == len(set(names))
    drive.settle()
    assert drive.context.mode in (Mode.RUNNING, Mode.ENDED)
    alive = [w for w in drive.context.workers.values() if not w.exited]
    assert drive.context.mode is Mode.ENDED or {w.name for w in alive} == set(drive.members())
