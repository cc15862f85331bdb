"""What the killing campaign can kill, and how each is healed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import kill_targets
from kill_ground import NETWORK
from waiting import wait_until

if TYPE_CHECKING:
    from kill_campaign import Campaign, Trained

SETTLE_S = 240.0
"""Longest that anything may take to be right again, on a machine as busy as it may be."""
HEALED_FIRST = (*NETWORK, "slurmdbd", "slurmctld")
"""Nothing comes back to where no packet arrives. A slurmctld that died young has no other source of its TRES, and a
node needs one to come back to. Healed again in their own turn, they only answer."""


class Kills:
    """Each kind's method kills, counts it, and gives what heals it, or None."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign, self.daemon, self.sandbox = campaign, campaign.daemon, campaign.sandbox
        self.counts, self.chance, self.ground = campaign.counts, campaign.chance, campaign.ground

    def one(self, kind: str) -> Callable[[], Any] | None:
        """Kill something of this kind."""
        if kind in NETWORK:
            return self.disturb(kind)
        kill: Callable[[], Callable[[], Any] | None] = getattr(self, kind)
        return kill()

    def victim(self) -> Trained | None:
        return self.chance.choice(self.campaign.jobs) if self.campaign.jobs else None

    def selasticd(self) -> Any:
        self.daemon.kill()
        self.counts.kills["selasticd"] += 1
        return self.daemon.start

    def supervisor(self) -> Any:
        job = self.victim()
        self.counts.kills["supervisor"] += (
            kill_targets.kill(*kill_targets.supervisors(self.sandbox, job.job_id)) if job else 0
        )

    def worker(self) -> Any:
        self._kill_one("worker", kill_targets.workers)

    def agent(self) -> Any:
        self._kill_one("agent", kill_targets.agents)

    def _kill_one(self, name: str, find: Any) -> None:
        job = self.victim()
        if job is None or not self.campaign.slurm_answers():
            return
        pieces = [job.job_id, *(c.job_id for c in self.daemon.companions() if c.name == f"selastic-{job.job_id}")]
        pids = sorted(pid for piece in pieces for pid in find(self.sandbox, piece))
        if pids:
            self.counts.kills[name] += kill_targets.kill(self.chance.choice(pids))

    def slurmctld(self) -> Any:
        """Not before it has saved the start of every base. One whose start it has forgotten it launches a second time
        and may fail ("Job credential revoked"), with or without selasticd: there is nothing left to come right."""
        wait_until(self.starts_are_saved, SETTLE_S, self.campaign.story, every=0.5)
        self.counts.kills["slurmctld"] += kill_targets.kill_daemon(self.sandbox, "slurmctld")
        return lambda: self.sandbox.start_daemon("slurmctld")

    def starts_are_saved(self) -> bool:
        if not self.campaign.slurm_answers():
            return True
        # It saves only after a change, so there is to be one.
        change = [f"jobid={self.campaign.filler}", f"comment=campaign {time.monotonic()}"]
        self.sandbox.run(["scontrol", "update", *change])
        queue, file = self.daemon.jobs(), self.sandbox.dir / "state" / "job_state"
        bases = [queue[job.job_id] for job in self.campaign.jobs if job.job_id in queue]
        if any(not base.running and base.state != "PENDING" for base in bases):
            return False
        starts = [base.start_time or base.submit_time for base in bases]
        return file.exists() and file.stat().st_mtime > max(starts, default=0.0) + 1

    def slurmdbd(self) -> Any:
        self.counts.kills["slurmdbd"] += kill_targets.kill_daemon(self.sandbox, "slurmdbd")
        return lambda: self.sandbox.start_daemon("slurmdbd")

    def node(self) -> Any:
        """A node that no base runs on: a base's death is a requeue, which `base` is about."""
        if not self.campaign.slurm_answers():
            return None
        bases = {
            node for job in self.campaign.jobs for node in getattr(self.daemon.jobs().get(job.job_id), "nodes", ())
        }
        free = [node for node in self.ground.free if node not in bases and self.ground.alive(node)]
        if not free:
            return None
        node = self.chance.choice(free)
        self.ground.kill_node(node)
        self.counts.kills["node"] += 1
        return lambda: self.ground.heal_node(node)

    def base(self) -> Any:
        """The node of a base dies: Slurm requeues the job, which goes on from its checkpoint on another node, long
        before this one is back: what Slurm sent to end the job's processes there must not find it again."""
        job = self.victim()
        held = self.daemon.jobs().get(job.job_id) if job and self.campaign.slurm_answers() else None
        if job is None or held is None or not held.running:
            return None
        node = held.nodes[0]
        if not self.ground.alive(node):
            return None  # dead already
        self.ground.kill_node(node)
        self.counts.kills["base node"] += 1

        def elsewhere() -> bool:
            self.campaign.remind()
            now = self.daemon.jobs().get(job.job_id) if self.campaign.slurm_answers() else None
            return self.campaign.field(job.job_id, "JobState") == "COMPLETED" or (now is not None and now.running)

        def heal() -> None:
            wait_until(elsewhere, SETTLE_S, self.campaign.story, every=0.2)
            self.ground.heal_node(node)

        return heal

    def flap(self) -> Any:
        """The node of a base dies, and is back as soon as packets reach it, wherever the job is by then."""
        if not self.campaign.slurm_answers():
            return None
        # A job that was submitted a moment ago, or that lost its node in the round before, has none yet.
        node = wait_until(self._node_of_a_base, SETTLE_S, self.campaign.story, every=0.2)
        self.ground.kill_node(node)
        self.counts.kills["flapping node"] += 1
        return lambda: self.ground.heal_node(node)

    def _node_of_a_base(self) -> str:
        """Of one that runs; empty: none does."""
        self.campaign.remind()
        queue = self.daemon.jobs()
        bases = [queue[job.job_id] for job in self.campaign.jobs if job.job_id in queue]
        nodes = [base.nodes[0] for base in bases if base.running and self.ground.alive(base.nodes[0])]
        return self.chance.choice(nodes) if nodes else ""

    def maintenance(self) -> Any:
        """A node is reserved for maintenance from now on, over whatever runs there."""
        if not self.campaign.slurm_answers():
            return None
        when = ["starttime=now", "duration=60", "users=root", "flags=maint,ignore_jobs"]
        words = [f"nodes={self.chance.choice(self.ground.free)}", "reservation=campaign", *when]
        made = self.sandbox.run(["scontrol", "create", *words]).returncode == 0
        self.counts.kills["maintenance"] += made
        return lambda: self.sandbox.run(["scontrol", "delete", "reservationname=campaign"])

    def disturb(self, kind: str) -> Any:
        """Packets get lost, or late."""
        job = self.victim()
        heal = self.ground.disturb(kind, job.address) if job else None
        self.counts.kills[kind] += heal is not None
        return heal
