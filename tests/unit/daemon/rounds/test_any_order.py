"""The daemon against an in-memory Slurm under anything that can happen: hypothesis looks for an order that breaks it.

At every moment: nobody below its minimum, no GPU given twice, the batch host kept, only elastic jobs touched; what is
kept from round to round changes nothing in a plan, nor in what it says. And from every state, left alone, it comes to
rest in a bounded number of rounds, with nothing leaked.
"""

from __future__ import annotations

import os

from daemon_harness import Supervisor, World
from fake_slurm import Component
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slurm_elastic.daemon.capacity.roster import sort_jobs

NODES, GPUS = 5, 4
EVERYWHERE = "SELASTIC_EVERYWHERE" in os.environ
"""More orders, in `make soak-cluster`."""
REQUESTS = (
    "elastic:gpus=4-20,step=4,batch=240-3840",
    "elastic:gpus=2-8,step=2,batch=240-3840",
    "elastic:gpus=1-6,batch=240-3840",
    "elastic:gpus=4-16,step=4,batch=240-3840,via=shrink+companion",
    "elastic:gpus=4-8,step=4,batch=240-3840,via=companion",
)


class Machine(RuleBasedStateMachine):
    """Everything that users, nodes, Slurm and time do."""

    @initialize()
    def begin(self) -> None:
        self.world = World.in_memory(nodes=NODES, gpus=GPUS)
        self.rigid: set[int] = set()
        self.least: dict[int, int] = {}

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.comes_to_rest()
        finally:
            self.world.close()

    # --- what users do --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.slurm.reachable and len(self.world.supervisors) < 5)
    @rule(
        number=st.integers(0, len(REQUESTS) - 1),
        nodes=st.integers(1, 2),
        measured=st.booleans(),
        minutes=st.integers(0, 20),
    )
    def submit_elastic(self, number: int, nodes: int, measured: bool, minutes: int) -> None:
        """A job with a request that its starting size fits."""
        nodes = 1 if number in (1, 2) else nodes
        gpus = 2 if number == 2 else 4
        limited = {"ends_at": self.world.slurm.now + 60.0 * minutes} if minutes > 10 else {}
        job = self.world.elastic(nodes, gpus, REQUESTS[number], measured, **limited)
        self.least[job.job_id] = int(REQUESTS[number].partition("gpus=")[2].partition("-")[0])

    @precondition(lambda self: self.world.slurm.reachable and len(self.world.supervisors) < 5)
    @rule()
    def submit_heterogeneous(self) -> None:
        """A base of one node and a component of two GPUs."""
        job_id = self.world.slurm.submit(
            Component(1, 4),
            Component(1, 2),
            user="games",
            name="het",
            comment="elastic:gpus=4-12,step=2,batch=240-3840",
        )
        self.world.supervisors[job_id] = Supervisor(self.world, job_id)
        self.least[job_id] = 4

    @precondition(lambda self: self.world.slurm.reachable)
    @rule(nodes=st.integers(1, NODES), gpus=st.sampled_from((1, 4)))
    def submit_rigid(self, nodes: int, gpus: int) -> None:
        if len(self.rigid) < 4:
            self.rigid.add(self.world.rigid(nodes, gpus))

    @precondition(lambda self: self.world.slurm.reachable)
    @rule(data=st.data())
    def finish_rigid(self, data: st.DataObject) -> None:
        running = [one for one in sorted(self.rigid) if one in self.world.snapshot().jobs]
        if running:
            self.world.slurm.finish(data.draw(st.sampled_from(running)))

    @precondition(lambda self: self.world.slurm.reachable)
    @rule(data=st.data(), how=st.sampled_from(("end", "crash")))
    def finish_elastic(self, data: st.DataObject, how: str) -> None:
        alive = [job for job in self.world.supervisors.values() if job.alive]
        if alive:
            getattr(data.draw(st.sampled_from(alive)), how)()

    @rule(data=st.data(), gpus=st.sampled_from((None, 4, 8)))
    def pin(self, data: st.DataObject, gpus: int | None) -> None:
        alive = [job for job in self.world.supervisors.values() if job.alive and self.world.store.jobs.get(job.job_id)]
        if alive:
            self.world.store.jobs.pin(data.draw(st.sampled_from(alive)).job_id, gpus)

    # --- what goes wrong ------------------------------------------------------------------------------------------

    @rule()
    def kill_daemon(self) -> None:
        self.world.boot()

    @rule(reachable=st.booleans())
    def slurm_comes_and_goes(self, reachable: bool) -> None:
        self.world.slurm.reachable = reachable

    @rule(data=st.data(), silent=st.booleans())
    def supervisor_hangs(self, data: st.DataObject, silent: bool) -> None:
        if self.world.supervisors:
            job = data.draw(st.sampled_from(sorted(self.world.supervisors)))
            self.world.supervisors[job].silent = silent

    @rule(number=st.integers(1, NODES), drained=st.booleans())
    def drain(self, number: int, drained: bool) -> None:
        self.world.slurm.set_node_state(f"n{number}", *(("IDLE", "DRAIN") if drained else ()))

    @precondition(lambda self: self.world.companions())
    @rule(data=st.data())
    def companion_dies(self, data: st.DataObject) -> None:
        self.world.slurm.finish(data.draw(st.sampled_from(self.world.companions())))

    # --- time -----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.world.round()

    @rule()
    def only_the_daemon(self) -> None:
        """A round before any supervisor has moved."""
        self.world.slurm.now += 0.1
        self.world.rounds.run()

    @rule(data=st.data())
    def one_supervisor_steps(self, data: st.DataObject) -> None:
        if self.world.supervisors:
            self.world.supervisors[data.draw(st.sampled_from(sorted(self.world.supervisors)))].step()

    # --- what always holds ----------------------------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "world") and self.world.slurm.reachable)
    @invariant()
    def what_is_kept_changes_no_plan(self) -> None:
        kept, fresh = self.world.rounds.dry_run(), self.world.rounds_from_scratch().dry_run()
        assert kept == fresh

    @invariant()
    def nothing_is_broken(self) -> None:
        if not hasattr(self, "world"):
            return
        snapshot = self.world.snapshot()
        assert self.world.rounds.trouble == "" or "could not be observed" in self.world.rounds.trouble
        assert self.world.rounds.mode == "act", self.world.rounds.executor.tripped
        used = dict.fromkeys(snapshot.nodes, 0)
        for job in snapshot.jobs.values():
            for node in job.nodes:
                used[node] += job.gpus_per_node
        assert max(used.values()) <= GPUS
        roster = sort_jobs(snapshot, accepted=set(self.least))
        for job_id, job in roster.elastic.items():
            if job.running:
                assert job.base.batch_host in job.base.nodes
                assert job.gpus >= min(self.least[job_id], self.world.supervisors[job_id].gpus or 99), job_id
        ended = [event for job in self.rigid for event in self.world.store.events.of(job)]
        assert ended == []

    def comes_to_rest(self) -> None:
        """All is well again and everybody answers: within bounded rounds nothing moves, and nothing is leaked."""
        world = self.world
        world.slurm.reachable = True
        for supervisor in world.supervisors.values():
            supervisor.silent = False
        for number in range(1, NODES + 1):
            world.slurm.set_node_state(f"n{number}")
        world.settle(400)
        world.is_at_rest(self.least)
        assert world.store.resizes.under_way() == []


Machine.TestCase.settings = settings(
    max_examples=40 if EVERYWHERE else 12,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
    # A failing sequence is printed as it is: shrinking one takes longer than reading it.
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
TestMachine = Machine.TestCase
