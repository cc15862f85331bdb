"""What people do by hand to jobs that are resized: further kinds of the killing campaign, and how each is taken back.

Each is done to a base or to one of its companions, at whatever stage its resize is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kill_actions import Kills

BY_HAND = ("cancel", "suspend", "hold", "requeue", "time_limit", "priority", "rename", "move", "reboot")
OF_NODES = ("base", "node", "reboot")


class Hands(Kills):
    """A person with scontrol and scancel."""

    def one(self, kind: str) -> Callable[[], Any] | None:
        """Nodes fail only while ordinary jobs leave enough of them for every job that is put back."""
        return None if kind in OF_NODES and self.campaign.rigid else super().one(kind)

    def some_job(self, companion: bool | None = None) -> tuple[str, bool]:
        """(The id of a job that Slurm has, whether it is a companion); ("", False) when there is none."""
        if not self.campaign.slurm_answers():
            return "", False
        bases = [(str(job.job_id), False) for job in self.campaign.jobs]
        companions = [(str(job.job_id), True) for job in self.daemon.companions()]
        among = [one for one in bases + companions if companion in (None, one[1])]
        return self.chance.choice(among) if among else ("", False)

    def scontrol(self, kind: str, *words: str) -> bool:
        """Whether Slurm took it: it refuses some in some states, which is as good a thing to happen."""
        taken = self.sandbox.run(["scontrol", *words]).returncode == 0
        self.counts.kills[kind if taken else f"refused {kind}"] += 1
        return taken

    def cancel(self) -> Any:
        """A companion is cancelled."""
        job, _ = self.some_job(companion=True)
        if job:
            self.sandbox.run(["scancel", job])
            self.counts.kills["cancel"] += 1

    def suspend(self) -> Any:
        job, companion = self.some_job()
        if not job or not self.scontrol("suspended companion" if companion else "suspended base", "suspend", job):
            return None
        return lambda: self.sandbox.run(["scontrol", "resume", job])

    def hold(self) -> Any:
        job, companion = self.some_job()
        if not job or not self.scontrol("held companion" if companion else "held base", "hold", job):
            return None
        return lambda: self.sandbox.run(["scontrol", "release", job])

    def requeue(self) -> Any:
        job, _ = self.some_job(companion=False)
        if job:
            self.scontrol("requeue", "requeue", job)

    def time_limit(self) -> Any:
        self.update("time limit", "TimeLimit=+10")

    def priority(self) -> Any:
        self.update("priority", "Nice=-100")

    def rename(self) -> Any:
        """A base gets another name. A companion is known by its name, and one that loses it is a job like others."""
        job, _ = self.some_job(companion=False)
        if job:
            self.scontrol("rename", "update", f"JobId={job}", "JobName=mine")

    def move(self) -> Any:
        """To another partition, which Slurm does for a waiting job only."""
        self.update("move", "Partition=main")

    def update(self, kind: str, change: str) -> None:
        job, companion = self.some_job()
        if job:
            self.scontrol(f"{kind} of a {'companion' if companion else 'base'}", "update", f"JobId={job}", change)

    def reboot(self) -> Any:
        """A node that no base runs on is set down by an admin, and comes back."""
        if not self.campaign.slurm_answers():
            return None
        queue = self.daemon.jobs()
        bases = {node for job in self.campaign.jobs if job.job_id in queue for node in queue[job.job_id].nodes}
        free = [node for node in self.ground.free if node not in bases]
        if not free:
            return None
        node = self.chance.choice(free)
        self.scontrol("reboot", "update", f"nodename={node}", "state=down", "reason=reboot")
        return lambda: self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
