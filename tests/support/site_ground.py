"""Elastic jobs at a site as it is configured, as the ground of a campaign: a limit that bites, vetoed shrinks, slow
epilogs, an exclusive job, urgent jobs that preempt, and people who change jobs by hand, bases or companions, at
whatever stage their resize is.
"""

from __future__ import annotations

import re

from campaign import Heal
from cluster_ground import SETTLE_S, ElasticJobs
from live_daemon import Selasticd
from site_cluster import COLLEAGUE, SiteCluster
from waiting import wait_until

MOST_GPUS = 6
"""What the elastic jobs may hold together: fewer than two of them want."""
BY_HAND = ("cancel", "suspend", "hold", "requeue", "time_limit", "priority", "rename", "move", "reboot")


class ElasticJobsAtSite(ElasticJobs):
    """Ordinary jobs come in the way of vetoes, or urgently."""

    options = "-N2 --partition=low --qos=capped"
    """A base that can be shrunk, against a veto."""

    def __init__(self, selasticd: Selasticd, site: SiteCluster, seed: int) -> None:
        super().__init__(selasticd, seed)
        self.kinds += BY_HAND
        self.site = site
        self.came = 0
        self.log_begins = len(self.slurmctld_log())
        site.limit("qos", "capped", GrpTRES=f"gres/gpu={MOST_GPUS}")
        site.epilog_takes(0.5)

    def before_faults(self) -> None:
        """The site refuses once that a base gives up a node of its own: whether it does so later is chance."""
        self.site.veto("modify", "sizes are fixed in this partition", partition="low")
        pinned = str(self.jobs[0].id)
        self.daemon.selastic("pin", pinned, "1")
        wait_until(lambda: self.interference()["refused"] > 0, SETTLE_S, self.story)
        self.daemon.selastic("unpin", pinned)
        self.site.allow()
        self.settle()

    def fill(self, nodes: int = 0, partition: str = "urgent") -> None:
        """One of the nodes taken is held whole by a job that asked for one GPU of it."""
        whole = self.site.sbatch("--partition=whole", "-N1", "--gres=gpu:1", "--time=600", user=COLLEAGUE)
        wait_until(lambda: self.site.squeue(whole, "%T") == "RUNNING", SETTLE_S)
        super().fill(nodes or self.filled - 2, partition)

    def rigid_options(self) -> tuple[str, ...]:
        """A node of a base: in turn while no base may be shrunk in place, and urgently, which preempts."""
        self.came += 1
        bases = [
            job for job in self.daemon.jobs().values() if job.running and job.partition == "low" and job.batch_host
        ]
        node = (f"--nodelist={max(self.chance.choice(bases).nodes)}",) if bases else ()
        if self.came % 2 == 0:
            return ("-N1", "--partition=urgent", *node)
        self.site.veto("modify", "sizes are fixed in this partition", partition="low")
        return ("-N1", *node)

    def healed(self) -> None:
        self.site.allow()

    def slurmctld_log(self) -> str:
        return (self.sandbox.dir / "log" / "slurmctld.log").read_text()

    def interference(self) -> dict[str, int]:
        """How often the site was really in the way: shrinks it vetoed, jobs it preempted."""
        log = self.slurmctld_log()[self.log_begins :]  # tests before this one preempted jobs, too
        return {
            "refused": len(self.rows("select 1 from events where kind = 'refused'")),
            "preempted": len(re.findall(r"preempted JobId=\d+ has been requeued", log)),
        }

    # --- nodes fail only while ordinary jobs leave enough of them for every job that is put back ----------------------

    def base(self) -> Heal | None:
        return None if self.rigid else super().base()

    def node(self) -> Heal | None:
        return None if self.rigid else super().node()

    def reboot(self) -> Heal | None:
        """A node that no base runs on is set down by an admin, and comes back."""
        node = "" if self.rigid else self.free_node()
        if not node:
            return None
        self.scontrol("reboot", "update", f"nodename={node}", "state=down", "reason=reboot")
        return lambda: self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])

    # --- by hand ------------------------------------------------------------------------------------------------------

    def some_job(self, companion: bool | None = None) -> tuple[str, bool]:
        """(The id of a job that Slurm has, whether it is a companion); ("", False) when there is none."""
        if not self.slurm_answers():
            return "", False
        bases = [(str(job.id), False) for job in self.jobs]
        companions = [(str(job.job_id), True) for job in self.daemon.companions()]
        among = [one for one in bases + companions if companion in (None, one[1])]
        return self.chance.choice(among) if among else ("", False)

    def scontrol(self, kind: str, *words: str) -> bool:
        """Whether Slurm took it: it refuses some in some states, which is as good a thing to happen."""
        taken = self.sandbox.run(["scontrol", *words]).returncode == 0
        self.happened[kind if taken else f"refused {kind}"] += 1
        return taken

    def cancel(self) -> None:
        """A companion is cancelled."""
        job, _ = self.some_job(companion=True)
        if job:
            self.sandbox.run(["scancel", job])
            self.happened["cancel"] += 1

    def suspend(self) -> Heal | None:
        return self.until_undone("suspended", "suspend", "resume")

    def hold(self) -> Heal | None:
        return self.until_undone("held", "hold", "release")

    def until_undone(self, kind: str, word: str, undone: str) -> Heal | None:
        job, companion = self.some_job()
        if not job or not self.scontrol(f"{kind} {'companion' if companion else 'base'}", word, job):
            return None
        return lambda: self.sandbox.run(["scontrol", undone, job])

    def requeue(self) -> None:
        job, _ = self.some_job(companion=False)
        if job:
            self.scontrol("requeue", "requeue", job)

    def time_limit(self) -> None:
        self.update("time limit", "TimeLimit=+10")

    def priority(self) -> None:
        self.update("priority", "Nice=-100")

    def move(self) -> None:
        """To another partition, which Slurm does for a waiting job only."""
        self.update("move", "Partition=main")

    def rename(self) -> None:
        """A base gets another name. A companion is known by its name, and one that loses it is a job like others."""
        self.update("rename", "JobName=mine", companion=False)

    def update(self, kind: str, change: str, companion: bool | None = None) -> None:
        job, is_companion = self.some_job(companion)
        if job:
            self.scontrol(f"{kind} of a {'companion' if is_companion else 'base'}", "update", f"JobId={job}", change)
