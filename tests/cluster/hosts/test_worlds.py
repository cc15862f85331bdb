"""A world of workers spans hosts, whatever they call themselves and each other."""

from __future__ import annotations

from collections.abc import Callable

from host_training import HostTraining

Start = Callable[..., HostTraining]


def test_a_job_grows_onto_another_host_and_gives_it_back(start: Start) -> None:
    """Training on two hosts grows by a companion on a third and shrinks again: every sample once, no step twice."""
    job = start("-N2", "--gres=gpu:1")
    base = job.daemon.wait_registered(120).pieces
    job.trains_past(3)
    job.daemon.order(1, job.id, base, (job.shape("n3"),), wait=120)
    grown = job.daemon.wait_phase(1, "running", 150)
    assert sorted(node for piece in grown.pieces for node in piece.nodes) == ["n1", "n2", "n3"], job.text()
    job.trains_past(grown.step + 3)
    job.daemon.order(2, job.id, base)
    job.daemon.wait_phase(2, "running", 60)
    job.go()
    job.ends()
    job.checked(job.samples, 1)
