"""Batch scripts with more in them than `selastic run`, on a real Slurm: steps before it, beside it and after it."""

from __future__ import annotations

from pathlib import Path

from fake_daemon import FakeDaemon
from site_cluster import SiteCluster
from training_job import TrainingJob
from waiting import wait_until

from slurm_elastic.protocol.messages import Piece, Shape

SCRIPT = """
srun --ntasks=2 --ntasks-per-node=1 true && echo "prepared on 2 nodes"
srun --overlap --nodes=1 --ntasks=1 --gres=none sleep 600 &
{run}
code=$?
srun --nodes=1 --ntasks=1 true && echo "evaluated"
kill $(jobs -p)
exit $code
"""


def test_steps_before_beside_and_after_training(site: SiteCluster, tmp_path: Path) -> None:
    """Resizes leave the script's other steps alone, and its last step finds the nodes that are left."""
    tmp_path.chmod(0o755)
    options = "-N2 --gres=gpu:1 --ntasks-per-node=1 -c2"
    with FakeDaemon() as daemon:
        words = "train.py 4000 1 0.1"
        job = TrainingJob(site.sandbox, tmp_path, options, words, daemon.env(tmp_path), SCRIPT)
        [base] = daemon.wait_registered().pieces
        job.says("prepared on 2 nodes")
        daemon.order(1, job.id, (base,), (Shape(1, 1),))
        companion = daemon.wait_phase(1, "running").pieces[1]
        left = Piece(job.id, "base", base.nodes[:1], 1)
        daemon.order(2, job.id, (left,))
        daemon.wait_phase(2, "running")
        job.slurm("scancel", str(companion.slurm_job_id))
        job.slurm("scontrol", "update", f"JobId={job.id}", f"NodeList={left.nodes[0]}")
        wait_until(lambda: job.field("NumNodes") == "1", 30)
        job.go()
        job.ends(timeout=120)
    job.checked(4000, 1)
    assert "evaluated" in job.text() and "starting again" not in job.text()
