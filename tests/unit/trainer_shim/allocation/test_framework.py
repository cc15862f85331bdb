"""A framework takes one file over allocation/: the toy that counts nodes is given some, loses some, and ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import toy_framework
from fake_daemon import FakeDaemon
from local_run import Run

from slurm_elastic.protocol.messages import Piece, Shape

TOY = (toy_framework.__file__,)


def nodes(pieces: tuple[Piece, ...]) -> list[int]:
    """The Slurm jobs of its nodes; without Slurm the base is job 0, and each node added has a number of its own."""
    return [piece.slurm_job_id for piece in pieces for _ in piece.nodes]


def test_a_toy_framework_counts_nodes_that_come_go_and_are_lost(tmp_path: Path) -> None:
    """Neither torch nor a line of the supervisor is needed for it; it goes on after a kill of its own process too."""
    with FakeDaemon() as daemon:
        run = Run(tmp_path, env=daemon.env(tmp_path), program=TOY)
        base = daemon.wait_registered().pieces
        daemon.order(1, 0, base, (Shape(1, 1), Shape(1, 1)))
        assert nodes(daemon.wait_phase(1, "running").pieces) == [0, 1, 2]
        run.says("nodes: 3")
        for pid in (run.supervisor(), *run.agents().values()):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        [lost] = [pid for name, pid in run.agents().items() if name.startswith("2.")]
        os.kill(lost, signal.SIGKILL)
        run.says("nodes: 2")
        daemon.order(2, 0, base)
        assert nodes(daemon.wait_phase(2, "running").pieces) == [0]
        assert run.text().count("nodes: 1\n") == 2
        os.kill(run.supervisor(), signal.SIGKILL)
        run.says("nodes: 1\n", times=3)
        run.process.terminate()
        assert run.wait() == 143
        assert daemon.wait_phase(0, "finished").exit_code == 143
    told = [phase for id, phase in daemon.told() if id == 1]
    assert told == ["accepted", "submitted", "granted", "ready", "running"]
