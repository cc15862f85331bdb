"""The killing campaign at a site as it is configured: a limit that bites, vetoed shrinks, slow epilogs, an exclusive
job, urgent jobs that preempt, and people who change jobs by hand.
"""

from __future__ import annotations

import re

from hand_actions import BY_HAND, Hands
from kill_actions import SETTLE_S
from kill_campaign import Campaign
from live_daemon import Selasticd
from site_cluster import COLLEAGUE, SiteCluster
from waiting import wait_until

MOST_GPUS = 6
"""What the elastic jobs may hold together: fewer than two of them want."""


class SiteCampaign(Campaign):
    """`run(rounds)` as the other; ordinary jobs come in the way of vetoes, or urgently."""

    def __init__(self, selasticd: Selasticd, site: SiteCluster, seed: int, kinds: tuple[str, ...] = ()) -> None:
        super().__init__(selasticd, seed, kinds)
        self.kills = Hands(self)
        self.site = site
        self.options = ("-N2", "--partition=low", "--qos=capped")  # a base that can be shrunk, against a veto
        self.came = 0
        self.log_begins = len(self.slurmctld_log())
        site.limit("qos", "capped", GrpTRES=f"gres/gpu={MOST_GPUS}")
        site.epilog_takes(0.5)

    def before_kills(self) -> None:
        """The site refuses once that a base gives up a node of its own: whether it does so later is chance."""
        self.site.veto("modify", "sizes are fixed in this partition", partition="low")
        pinned = str(self.jobs[0].job_id)
        self.daemon.selastic("pin", pinned, "1")
        wait_until(lambda: self.interference()["refused"] > 0, SETTLE_S, self.story)
        self.daemon.selastic("unpin", pinned)
        self.site.allow()
        self.settle()

    def possible(self) -> tuple[str, ...]:
        return (*super().possible(), *BY_HAND)

    def fill(self, nodes: int = 0, partition: str = "urgent") -> None:
        """One of the nodes taken is held whole by a job that asked for one GPU of it."""
        whole = self.site.sbatch("--partition=whole", "-N1", "--gres=gpu:1", "--time=600", user=COLLEAGUE)
        wait_until(lambda: self.site.squeue(whole, "%T") == "RUNNING", SETTLE_S)
        super().fill(nodes or self.ground.filled - 2, partition)

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

    def after_kills(self) -> None:
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
