"""Each task of an array is an elastic job of its own, the last one too, which has the array's own id as its number."""

from __future__ import annotations

import pytest
from live_daemon import Selasticd, live_daemon
from site_cluster import SiteCluster
from waiting import wait_until


def test_every_task_of_an_array_gives_way_and_is_known_by_its_name(
    site: SiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks of two nodes each make room for an ordinary job; the commands show and take 7_1 as Slurm does."""
    with live_daemon(site.sandbox, monkeypatch) as selasticd:
        size = "elastic:gpus=4-8,step=4,batch=240-3840"
        array = selasticd.submit("--array=1-2", "-N2", "--gres=gpu:a100:4", comment=size)
        wait_until(lambda: len(tasks(selasticd, array)) == 2, 60, selasticd.log)
        found = tasks(selasticd, array)
        assert found[f"{array}_2"] == array != found[f"{array}_1"]
        for job in found.values():
            selasticd.settles_at(job, 8)
        rigid = selasticd.rigid(6)
        wait_until(lambda: selasticd.jobs()[rigid].running, 60, selasticd.log)
        for name, job in found.items():
            selasticd.settles_at(job, 4)
            assert "refused" not in selasticd.events(job), selasticd.log()
            explained = selasticd.selastic("explain", name)
            assert explained.returncode == 0 and f"Job {name} shrank from 8 to 4 GPUs" in explained.stdout
            one = selasticd.selastic("status", "-n", "-o", "JobID,GPUs,Held", "-j", name)
            assert one.stdout.split() == [name, "4", "4"]
        unknown = selasticd.selastic("events", f"{array}_9")
        assert unknown.returncode == 1 and f"task {array}_9 is not known" in unknown.stderr


def tasks(selasticd: Selasticd, array: int) -> dict[str, int]:
    """The running tasks' numbers by their names."""
    return {job.task_name: job.job_id for job in selasticd.jobs().values() if job.running and job.array_job_id == array}
