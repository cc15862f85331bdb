"""Batch scripts with more in them than `selastic run`, on a real Slurm: steps before it, beside it and after it."""

from __future__ import annotations

from training import on
from training_job import Start
from waiting import wait_until

from slurm_elastic.protocol.messages import Piece

SCRIPT = """
srun --ntasks=2 --ntasks-per-node=1 true && echo "prepared on 2 nodes"
srun --overlap --nodes=1 --ntasks=1 --gres=none sleep 600 &
{run}
code=$?
srun --nodes=1 --ntasks=1 true && echo "evaluated"
kill $(jobs -p)
exit $code
"""


def test_steps_before_beside_and_after_training(start: Start) -> None:
    """Resizes leave the script's other steps alone, and its last step finds the nodes that are left."""
    job = start("-N2 --gres=gpu:1 --ntasks-per-node=1 -c2", 4000, script=SCRIPT)
    [base] = job.base()
    job.says("prepared on 2 nodes")
    companion = job.resize((base,), on()).pieces[1]
    left = Piece(job.id, "base", base.nodes[:1], 1)
    job.resize((left,))
    job.slurm("scancel", str(companion.slurm_job_id))
    job.slurm("scontrol", "update", f"JobId={job.id}", f"NodeList={left.nodes[0]}")
    wait_until(lambda: job.field("NumNodes") == "1", 30)
    job.finish()
    assert "evaluated" in job.text() and "starting again" not in job.text()
