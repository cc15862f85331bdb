"""`selastic run` without Slurm: real processes, real worlds, a real supervisor on this machine."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import audited
import pytest
from fake_daemon import FakeDaemon
from free_ports import free_port
from local_run import Start, children, kill
from training import TRAIN, on
from waiting import wait_until

from slurm_elastic.trainer_shim.training import audit


def test_trains_and_ends_with_zero(start: Start, tmp_path: Path) -> None:
    """Two workers train every sample of every epoch once; rank 0's output is the job's, every rank's is in a file."""
    (tmp_path / "train.py").write_text(TRAIN + "print('rank', job.rank, 'is over')\n")
    run = start("--nproc 2", 100, 2, 0, alone=True)
    run.finish()
    assert run.text().count("trained 200 samples") == 1
    logs = [path.read_text() for path in sorted((run.job_dir / "logs").glob("0.*.log"))]
    assert [log.splitlines()[-1] for log in logs] == ["rank 0 is over", "rank 1 is over"], logs


def test_grows_shrinks_and_changes_its_batch(start: Start) -> None:
    """A companion joins, the batch changes, the companion leaves; training goes on in the same processes throughout."""
    run = start("--nproc 2", 4000, 2, 0.1)
    base = run.base()
    assert [piece.gpus for piece in base] == [2]
    survivors = set(run.worker_pids())
    grown = run.resize(base, on(), batch=48, steps=0)
    assert [piece.gpus for piece in grown.pieces] == [2, 1]
    assert grown.batch == 48
    steps = ("accepted", "submitted", "granted", "ready", "running")
    assert run.daemon.told() == [(0, "running"), *((1, phase) for phase in steps)]
    assert run.resize(grown.pieces, batch=30, steps=0).batch == 30
    assert run.resize(base, batch=32, steps=0).pieces == base
    run.wait_for(lambda: set(run.worker_pids()) == survivors)
    run.finish()
    phases, reports = run.daemon.happenings, run.daemon.reports
    assert run.daemon.told()[-1] == (0, "finished") and phases[-1].exit_code == 0 and phases[-1].samples == 8000
    assert reports and {report.gpus for report in reports} <= {2, 3}
    assert "restart" not in run.text()
    assert "starting again" not in run.text()


def test_a_slow_rank_and_a_starved_input_reach_the_daemon(start: Start, tmp_path: Path) -> None:
    """Real ranks, one of which takes five times as long, and then one whose dataset does; as often as it asked for."""
    slow = TRAIN.replace("else nap)", "else nap * (1 + 4 * job.rank))")
    starved = """
class Slow(torch.utils.data.TensorDataset):
    def __getitem__(self, i):
        time.sleep(nap * job.rank / 2)
        return super().__getitem__(i)
data = Slow("""
    (tmp_path / "slow.py").write_text(slow)
    (tmp_path / "starved.py").write_text(TRAIN.replace("data = torch.utils.data.TensorDataset(", starved))
    for script, kind in (("slow.py", "slow_rank"), ("starved.py", "starved_input")):
        run = start(f"--nproc 2 --job-dir {tmp_path / kind}", 64000, 1, 0.02, script=script)
        named = run.wait_for(lambda d=run.daemon: [r for r in d.reports if r.bottleneck])  # type: ignore[misc]
        run.process.kill()
        assert (named[0].bottleneck, named[0].bottleneck_rank) == (kind, 1), named[0]
        assert named[0].bottleneck_share > 0.3


def test_killed_worker_restarts_from_checkpoint(start: Start) -> None:
    """kill -9 of one worker: all start again from the last checkpoint, and no sample is lost or counted twice."""
    run = start("--nproc 2 --checkpoint-every 1", 2000, 2, 0.02, alone=True)
    run.wait_for(run.saved)
    kill(run.worker_pids()[1])
    run.says("was killed by signal 9; starting again from the checkpoint")
    run.finish()


def test_killed_agent_is_replaced(start: Start) -> None:
    """kill -9 of the agent on the batch host takes its workers along; a new agent carries the training on."""
    run = start("--nproc 1 --checkpoint-every 1", 1000, 1, 0.02, alone=True)
    run.wait_for(run.saved)
    [worker] = run.worker_pids()
    kill(children(run.supervisor())[0])
    run.says("was lost; starting again from the checkpoint")
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), 60, "the old worker's end")
    run.finish()


def test_a_process_group_of_the_scripts_own_is_told(start: Start, tmp_path: Path) -> None:
    """No world can form beside it: one sentence before the first step, and no restart."""
    own = "import torch.distributed as dist\ndist.init_process_group('gloo', init_method='file://' + os.path.abspath("
    own += "'group') + os.environ['SELASTIC_WORKER'], rank=0, world_size=1)\n"
    (tmp_path / "train.py").write_text(TRAIN.replace("job = ", own + "job = ", 1))
    run = start("--nproc 2", 200, 1, 0, alone=True)
    assert run.wait() == 1, run.text()
    assert "called torch.distributed.init_process_group(); leave it out" in run.text()
    assert "generation 1:" not in run.text() and "starting again" not in run.text()


def test_failing_script_gives_its_code_and_last_lines(start: Start, tmp_path: Path) -> None:
    """A script that fails before it trains is not tried again: its exit code and its error reach the user."""
    (tmp_path / "bad.py").write_text("import sys\nprint('before')\nraise SystemExit(7)\n")
    run = start("--nproc 1", script="bad.py", alone=True)
    assert run.wait() == 7
    assert "before" in run.text()
    (tmp_path / "bad.py").write_text("open('nothing-there')\n")
    again = start("--nproc 1", script="bad.py", alone=True)
    assert again.wait() == 1
    assert "No such file or directory: 'nothing-there'" in again.text()


@pytest.mark.parametrize(
    ("fails", "attempts", "says"),
    [
        ("assert job.rank == 0 or job.global_step < 3, 'broken'", 2, "the same error as before, AssertionError at "),
        ("job.rank == 0 or job.global_step < 3 or open('/dev/null/broken')", 3, "3 failures without progress"),
    ],
    ids=["an error", "a file that fails"],
)
def test_failure_that_repeats_is_given_up(start: Start, tmp_path: Path, fails: str, attempts: int, says: str) -> None:
    """An error that comes back ends the job with the script's code: at its second time, or at a file's third."""
    (tmp_path / "train.py").write_text(TRAIN.replace("else nap)", f"else nap); {fails}"))
    run = start("--nproc 2", 400, 1, 0, alone=True)
    assert run.wait() == 1, run.text()
    assert run.text().count("starting again") == attempts - 1
    assert run.text().count("Error: ") == (attempts if "open" in fails else 1)  # the same error is shown once
    assert "worker_process.py" not in run.text()
    assert says in run.text()


OWN_LOOP = """
import torch, pathlib
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=4)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
net, iteration = job.replicate(model), 0
job.keep(globals(), "iteration", optimizer=optimizer)
while job.next():
    for _ in job.share(4):
        net(torch.randn(1, 2)).mean().backward()
    if iteration == 7 and job.rank == 1 and not pathlib.Path("failed").exists():
        pathlib.Path("failed").touch()
        raise ValueError("once")
    optimizer.step()
    optimizer.zero_grad()
    iteration += 1
    if iteration == 20:
        break
"""


def test_an_error_in_a_loop_of_its_own_is_a_restart(start: Start, tmp_path: Path) -> None:
    """An error inside the loop is not taken for its end; and when the script leaves it, the training is finished."""
    (tmp_path / "train.py").write_text(OWN_LOOP)
    run = start("--nproc 2", alone=True)
    assert run.wait() == 0, run.text()
    assert (tmp_path / "failed").exists()
    result = audited.check(tmp_path / "audit", 4, 20)
    assert result.ok and result.restarts == 1, (result, run.text())


def test_exit_on_purpose_is_the_end(start: Start, tmp_path: Path) -> None:
    """sys.exit(9) inside the training loop is the script's decision: nothing is started again."""
    script = TRAIN.replace("else nap)", "else nap); job.global_step == 3 and sys.exit(9)")
    (tmp_path / "train.py").write_text(script)
    run = start("--nproc 2", 400, 1, 0, alone=True)
    assert run.wait() == 9, run.text()
    assert "starting again" not in run.text()


def test_sigterm_checkpoints_and_the_next_run_goes_on(start: Start) -> None:
    """SIGTERM: a checkpoint, then the end; the same command with the same directory continues exactly there."""
    run = start("--nproc 2", 2000, 1, 0.02, alone=True)
    run.says("generation 1: 2 workers")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.text()
    assert "written, ending" in run.text()
    last = run.text().splitlines()[-1]
    assert f"the same command with --job-dir {run.job_dir} goes on from the checkpoint of step " in last
    assert run.saved()
    again = start("--nproc 2", 2000, 1, 0.02, alone=True)
    again.finish()
    assert "generation 2: 2 workers" in again.text()


def test_a_supervisor_that_is_killed_loses_no_step(start: Start) -> None:
    """Its workers save what they have trained, and leave; the next run goes on exactly there."""
    run = start("--nproc 2", 2000, 1, 0.02, alone=True)
    run.says("generation 1: 2 workers")
    workers = run.worker_pids()
    run.process.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 60, run.text)
    assert run.saved() == run.trained() > 0
    start("--nproc 2", 2000, 1, 0.02, alone=True).finish()


def test_a_supervisor_that_is_killed_is_started_again(start: Start, tmp_path: Path) -> None:
    """Out of memory, say: the training goes on from where it was, in the same run."""
    run = start("--nproc 2", 2000, 1, 0.02, alone=True)
    run.says("generation 1: 2 workers")
    kill(run.supervisor())
    run.says("generation 2: 2 workers")
    run.finish()
    lines = [row for row in audit.read(tmp_path / "audit") if "indices" in row]
    steps = {number: [row["step"] for row in lines if row["generation"] == number] for number in (1, 2)}
    assert min(steps[2]) == max(steps[1]) + 1, run.text()


def test_a_step_that_outlasts_the_job_is_the_only_one_lost(start: Start) -> None:
    """Rank 0 is in the middle of a step that does not end: it writes the state before that step."""
    run = start("--nproc 2", 20000, 1, 0.02, alone=True)
    run.says("generation 1: 2 workers")
    (run.folder / "stuck").touch()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.text()
    assert run.saved() >= run.trained() - 1, run.text()


def test_ranks_that_die_in_the_last_step_take_only_that_with_them(start: Start, tmp_path: Path) -> None:
    """Rank 0 waits for them in the all-reduce of the step when SIGTERM comes, and they are killed."""
    (tmp_path / "train.py").write_text(TRAIN.replace("job.rank == 0:", "job.rank == 1:"))
    run = start("--nproc 2", 20000, 1, 0.02, alone=True)
    run.says("generation 1: 2 workers")
    other = run.worker_pids()[1]
    (tmp_path / "stuck").touch()
    run.process.send_signal(signal.SIGTERM)
    run.says("about to end")
    kill(other)
    assert run.wait() == 143, run.text()
    assert run.saved() >= run.trained() - 1, run.text()


def test_daemon_lost_and_back(start: Start) -> None:
    """Training goes on without its daemon; one that comes back gets a registration, reports, and is obeyed."""
    run = start("--nproc 1", 40000, 1, 0.02, port=free_port())
    generation = run.daemon.wait_registered().generation
    run.daemon.close()
    with FakeDaemon(run.daemon.port) as second:
        second.forget_tokens()
        registration = second.wait_registered(60)
        assert registration.generation == generation
        second.order(5, 0, registration.pieces, batch=24)
        assert second.wait_phase(5, "running").batch == 24
        wait_until(lambda: second.reports, 30, "a report")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 143, run.text()
        assert second.told()[-1] == (0, "finished")
        assert second.happenings[-1].exit_code == 143


def test_failed_training_tells_the_daemon_its_code(start: Start, tmp_path: Path) -> None:
    """The daemon hears what the supervisor exits with, and so does not take a failure for success."""
    script = TRAIN.replace("else nap)", "else nap); job.global_step == 3 and sys.exit(9)")
    (tmp_path / "train.py").write_text(script)
    run = start("--nproc 1", 400, 1, 0.05)
    assert run.wait() == 9, run.text()
    last = run.daemon.happenings[-1]
    assert (last.what, last.exit_code) == ("finished", 9)


def test_error_after_the_training_is_no_restart(start: Start, tmp_path: Path) -> None:
    """What follows the loop would fail again."""
    (tmp_path / "train.py").write_text(TRAIN + "\nraise RuntimeError('after the loop')\n")
    run = start("--nproc 1", 40, 1, 0, alone=True)
    assert run.wait() == 1, run.text()
    assert "starting again" not in run.text(), run.text()


def test_resize_that_does_not_fit_is_refused(start: Start) -> None:
    """A resize over pieces that the job does not use changes nothing, and says why."""
    run = start("--nproc 1", 1000, 1, 0.02)
    [base] = run.base()
    number = run.order((base, replace(base, slurm_job_id=7, kind="companion")))
    assert "job 7 is not in use" in run.daemon.wait_phase(number, "failed").detail
    run.finish()


def test_dry_run_starts_nothing(start: Start) -> None:
    """--dry-run shows the command and the ranks, makes no directory, starts no process."""
    run = start("--nproc 3 --dry-run", 1, 1, 0)
    assert run.wait() == 0
    assert "slurm_elastic.trainer_shim.node.agent train.py 1 1 0" in run.text()
    assert "rank 2: " in run.text()
    assert not run.job_dir.exists()


def test_record_survives(start: Start) -> None:
    """The generation in the job directory is the one last used: a later run never repeats it."""
    run = start("--nproc 1", 50, 1, 0, alone=True)
    assert run.wait() == 0, run.text()
    assert json.loads((run.job_dir / "run.json").read_text())["generation"] == 1


def test_an_edit_while_it_runs_makes_no_second_program(start: Start, tmp_path: Path) -> None:
    """Of the script or of a module beside it, into one that does not even compile: workers that start again run what
    the job began with, and say so. A new run takes the files as they are."""
    (tmp_path / "beside.py").write_text("NAME = 'the first'\n")
    (tmp_path / "train.py").write_text("import beside\n" + TRAIN + "job.log('this is', beside.NAME)\n")
    words = "--nproc 2 --checkpoint-every 1"
    run = start(words, 2000, 1, 0.02, alone=True)
    run.wait_for(run.saved)
    (tmp_path / "train.py").write_text("import beside\n" + TRAIN.replace("lr=0.1", "lr=0.2") + "raise\n")
    (tmp_path / "beside.py").write_text("NAME = 'unfinish")
    kill(run.worker_pids()[1])
    run.says("generation 2: 2 workers")
    run.finish()
    assert "this is the first" in run.text() and "train.py was edited since this job began" in run.text()
    (tmp_path / "beside.py").write_text("NAME = 'the second'\n")
    (tmp_path / "train.py").write_text("import beside\nprint('this is', beside.NAME)\n")
    again = start(words, 2000, 1, 0.02, alone=True)
    assert again.wait() == 0 and "this is the second" in again.text(), again.text()
