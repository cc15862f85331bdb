"""The site that these tests configure does what its names say, on a real Slurm: else they would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_cluster import SiteCluster
from waiting import wait_until

from slurm_elastic.daemon.selasticd.preflight import check
from slurm_elastic.daemon.selasticd.settings import Settings


def test_a_limit_holds_a_job_until_the_test_is_over(site: SiteCluster) -> None:
    """Slurm names the limit; taken back, the job starts."""
    site.limit("qos", "capped", MaxTRESPerUser="gres/gpu=4")
    site.sbatch("--qos=capped", "-N1", "--gres=gpu:4")
    over = site.sbatch("--qos=capped", "-N1", "--gres=gpu:4")
    site.wait_for_reason(over, "QOSMaxGRESPerUser")
    site.reset()
    free = [site.sbatch("--qos=capped", "-N1", "--gres=gpu:4") for _ in range(2)]
    wait_until(lambda: all(site.squeue(job, "%T") == "RUNNING" for job in free), 30)


def test_a_veto_refuses_and_tells_the_user(site: SiteCluster) -> None:
    """Only what it names is refused: the submission, or the shrink, and nothing else of the job."""
    site.veto("submit", "no long jobs", name="long")
    refused = site.sandbox.run(["sbatch", "-Jlong", "--wrap", "sleep 600"], user="games")
    assert refused.returncode != 0 and "no long jobs" in refused.stderr
    site.veto("modify", "sizes are fixed here", partition="low")
    job = site.sbatch("-plow", "-N2", "--gres=gpu:4")
    wait_until(lambda: site.squeue(job, "%T") == "RUNNING", 30)
    nodes = site.squeue(job, "%N")
    shrink = ["scontrol", "update", f"jobid={job}"]
    first = site.sandbox.run(["scontrol", "show", "hostnames", nodes]).stdout.split()[0]
    vetoed = site.sandbox.run([*shrink, f"nodelist={first}"])
    assert vetoed.returncode != 0  # 22.05 has no way to show scontrol the plugin's text
    assert site.sandbox.run([*shrink, "comment=fine"]).returncode == 0
    site.allow()
    assert site.sandbox.run([*shrink, f"nodelist={first}"]).returncode == 0


def test_selasticds_check_knows_partitions_and_accounts(
    site: SiteCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name in the settings that Slurm does not have is a typing error."""
    found = {"state_dir": str(tmp_path), "slurm_conf": site.sandbox.env["SLURM_CONF"], "listen": "127.0.0.1:0"}
    for values, said in (
        ({"partitions": ("main", "low"), "accounts": ("research",)}, "names: those in the settings are known"),
        ({"partitions": ("mian",)}, "names: partitions=mian is not known here; did you mean main?"),
        ({"accounts": ("reserch",)}, "names: accounts=reserch is not known here; did you mean research?"),
        ({"gpu_limits": ("account:reserch=4",)}, "names: gpu_limits=reserch is not known here; did you mean research?"),
    ):
        check(Settings(**found, **values))  # type: ignore[arg-type]
        assert said in capsys.readouterr().out


def test_an_epilog_takes_its_time_and_is_written_down(site: SiteCluster) -> None:
    """A node is the next job's only when its epilog is over."""
    site.epilog_takes(1)
    job = site.sbatch("-N1", "--gres=gpu:4", wrap="true")
    wait_until(lambda: len(site.epilogs()) == 2, 30, lambda: str(site.epilogs()))
    (begin, node, first, begun), (end, other, second, ended) = site.epilogs()
    assert (begin, end, first, second) == ("begin", "end", job, job)
    assert node == other and ended - begun >= 1


def test_keys_of_slurm_conf_are_set_and_set_back(site: SiteCluster) -> None:
    """What the scheduler is told at run time is as a test says."""

    def parameters() -> str:
        shown = site.sandbox.run(["scontrol", "show", "config"]).stdout
        return next(line.partition("=")[2].strip() for line in shown.splitlines() if line.startswith("SchedulerPara"))

    before = parameters()
    site.configure(SchedulerParameters="bf_interval=60")
    assert parameters() == "bf_interval=60"
    site.reset()
    assert parameters() == before


def test_whole_nodes_are_held_and_urgent_jobs_preempt(site: SiteCluster) -> None:
    """One GPU asked for in `whole` holds all of its node; `urgent` takes from `main` what it needs."""
    whole = site.sbatch("-pwhole", "-N1", "--gres=gpu:1")
    wait_until(lambda: site.squeue(whole, "%T") == "RUNNING", 30)
    shown = site.sandbox.run(["scontrol", "-d", "show", "job", str(whole)]).stdout
    assert "gres/gpu=4" in shown.partition("TRES=")[2]
    filler = site.sbatch("-N7", "--gres=gpu:4")
    wait_until(lambda: site.squeue(filler, "%T") == "RUNNING", 30)
    urgent = site.sbatch("-purgent", "-N7", "--gres=gpu:4")
    wait_until(lambda: site.squeue(urgent, "%T") == "RUNNING", 30, lambda: site.sandbox.run(["squeue"]).stdout)
