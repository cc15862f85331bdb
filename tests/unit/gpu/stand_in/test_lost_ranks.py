"""Ranks that are lost where nothing says so: on the stand-in for NCCL a lost rank hangs, and forming takes its time."""

from __future__ import annotations

import signal
from pathlib import Path

import campaign
import pytest
import stand_in
from refused_worlds import refused
from training_ground import KilledTraining
from waiting import wait_until
from worker_harness import SCRIPT, Control, Start, Zygote, alone, difference, result

from slurm_elastic.trainer_shim.training import audit
from slurm_elastic.trainer_shim.training.guards import device_watch

PHASES = ("connect", "formed", "move", "forward", "backward", "settle")


@pytest.mark.parametrize(("forming_s", "phases"), [("0", PHASES), ("3", ("connect", "forward"))])
def test_no_step_is_lost_whenever_a_joiner_is(
    zygote: Zygote, start: Start, tmp_path: Path, forming_s: str, phases: tuple[str, ...]
) -> None:
    """Killed while its communicator forms, which would wait for it for ever, up to its first step, which hangs: each
    time the two survivors train on in their processes; then a grow succeeds, and parameters are as without all that."""
    sizes = ["--micro", "12", "--samples", "3003", "--epochs", "1"]
    control = start("--hold-from", "0", *sizes)
    control.spawn("a", "b", STANDIN_FORM_S=forming_s)
    control.ready("a", "b")
    control.running(control.world("a", "b", source="fresh"))
    for phase in phases:
        refused(control, phase, signal.SIGKILL, "ab", [phase])
    control.resize("a", "b", "c")
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    control.checked(samples=3003, epochs=1, worlds=2, restarts=0, steps=61)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12


OLD = """
import runpy, sys
from slurm_elastic.trainer_shim.world import groups
groups.ABORTS = False
sys.path.insert(0, {folder!r})
runpy.run_path({script!r}, run_name="__main__")
"""
"""plain_train.py where torch is older than 2.7."""


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("", ["and the GPU waits for another rank: its communicators are aborted"]),
        (OLD, ["cannot abort communicators of NCCL, 2.7 can: where a rank is lost all", "2.7 can: this process ends"]),
    ],
)
def test_a_world_whose_rank_stands_still_is_aborted_and_left(
    zygote: Zygote, tmp_path: Path, script: str, says: list[str]
) -> None:
    """SIGSTOP in a world that trains: the other one hangs in its GPU, in bounded time is free again, says why, saves
    nothing of what its GPU holds then, and leaves; an older torch, which says so at the start, at once."""
    (tmp_path / "train.py").write_text(script.format(script=str(SCRIPT), folder=str(SCRIPT.parent)))
    control = Control(zygote, tmp_path, ["--epochs", "1000"], tmp_path / "train.py" if script else SCRIPT)
    try:
        control.spawn("a", "b", **{device_watch.PATIENCE: "2"})
        control.ready("a", "b")
        control.running(control.world("a", "b", source="fresh"))
        wait_until(lambda: sum("indices" in row for row in audit.read(control.audit)) > 40, 60, control.story)
        control.kill("b", signal.SIGSTOP)
        assert control.exits("a", hold=True) == [75], control.story()
        said = (control.directory / "a.log").read_text()
        assert [line for line in says if line not in said] == [], control.story()
        if not script:
            failed = control.wait(lambda worker, m: (worker, m["type"]) == ("a", "failed"))
            assert "no step for" in failed["error"] and not failed.get("survived")
    finally:
        control.close()


def test_nothing_is_lost_whatever_is_killed_meanwhile(zygote: Zygote, tmp_path: Path) -> None:
    """Six resizes under `selastic run`, two kills, forming slower: every sample once, parameters those of a replay."""
    gpus = stand_in.environment(STANDIN_FORM_S="0.5", STANDIN_CLOSE_S="0.5")
    ground = KilledTraining(tmp_path, 3, resizes=6, kills=2, nap=0.04, grows=0.5, gpus=gpus)
    assert campaign.run(ground, rounds=6, most=1).total() == 2
    ground.proof()
