"""An admin clears a node or reserves it, and need not wait for elastic jobs that could train elsewhere."""

from __future__ import annotations

import time

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from waiting import wait_until


def test_a_drained_node_is_left_for_another(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has as many GPUs afterwards as before, and the node is empty."""
    with live_daemon(site.sandbox, monkeypatch) as daemon:
        job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4")
        daemon.settles_at(job, 12)
        [node, *_] = [name for one in daemon.jobs().values() if one.job_id != job for name in one.nodes]
        update = ["scontrol", "update", f"nodename={node}"]
        assert site.sandbox.run([*update, "state=drain", "reason=repair"]).returncode == 0
        try:
            wait_until(lambda: node not in used(site), 90, daemon.log)
            daemon.settles_at(job, 12)
            assert node not in used(site)
            assert "shrink_drain" in str(daemon.client().get(f"/v1/jobs/{job}/events"))
        finally:
            site.sandbox.run([*update, "state=resume"])


def test_nodes_that_fail_or_are_reserved_are_left(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one: a node that an admin calls failing, one that is in maintenance from now on, and one that is reserved
    from soon on, which is empty before that. Slurm lets an admin reserve them over their companions' time limits, with
    IGNORE_JOBS, or when they are drained. The job has as many GPUs afterwards as before, on other nodes."""
    made = []

    def fails(node: str) -> float:
        scontrol(site, "update", f"nodename={node}", "state=fail", "reason=fan")
        return time.time() + 90

    def reserved(node: str, start: str, *flags: str) -> float:
        words = ["create", "reservation", f"nodes={node}", f"starttime={start}", "duration=60", "users=root"]
        made.append(scontrol(site, *words, *flags).rpartition("created: ")[2].strip())
        shown = scontrol(site, "-o", "show", "reservation", made[-1])
        start_time = time.strptime(shown.partition("StartTime=")[2].split()[0], "%Y-%m-%dT%H:%M:%S")
        return time.time() + 90 if start == "now" else time.mktime(start_time)

    def drained_for_it(node: str) -> float:
        """Without IGNORE_JOBS: Slurm would call the node busy."""
        state = ["update", f"nodename={node}", "reason=repair"]
        scontrol(site, *state, "state=drain")
        wait_until(lambda: node not in used(site), 90)
        until = reserved(node, "now+70")
        scontrol(site, *state[:2], "state=resume")
        return until

    with live_daemon(site.sandbox, monkeypatch, "site_interval_s = 1\n") as daemon:
        job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4")
        left: list[str] = []
        try:
            for clear in (
                fails,
                lambda node: reserved(node, "now", "flags=maint,ignore_jobs"),
                lambda node: reserved(node, "now+70", "flags=ignore_jobs"),
                drained_for_it,
            ):
                daemon.settles_at(job, 12)
                left += [name for one in daemon.jobs().values() if one.job_id != job for name in one.nodes][:1]
                until = clear(left[-1])
                wait_until(lambda node=left[-1]: node not in used(site), 90, daemon.log)
                assert time.time() < until
            daemon.settles_at(job, 12)
            assert used(site).isdisjoint(left) and len({*left}) == 4
        finally:
            for node in left:
                site.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
            for name in made:
                site.sandbox.run(["scontrol", "delete", f"reservationname={name}"])


def scontrol(site: SiteCluster, *words: str) -> str:
    """What it says; asserts that Slurm took it."""
    answer = site.sandbox.run(["scontrol", *words])
    assert answer.returncode == 0, answer.stderr
    return answer.stdout + answer.stderr


def used(site: SiteCluster) -> set[str]:
    """Nodes with jobs on them."""
    lists = site.sandbox.run(["squeue", "-h", "-t", "R,CG", "-o", "%N"]).stdout.split()
    return set(site.sandbox.run(["scontrol", "show", "hostnames", ",".join(lists)]).stdout.split())
