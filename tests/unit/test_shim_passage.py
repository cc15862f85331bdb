"""Worlds that do not come about once everyone has arrived: the old one goes on, with nothing lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from shim_harness import Control, Start, Zygote, alone, difference, result

from slurm_elastic.trainer_shim import audit
from slurm_elastic.trainer_shim.mesh import CUTS_ON_CPUS

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
KILLED = ("form", "formed", "fill", "move", "entered", "forward", "backward", "settle")
STOPPED = ("move", "forward")
BOUND_S = {signal.SIGKILL: 20.0, signal.SIGSTOP: 3.0}
"""Of one communication: what nobody is told of ends then."""


def refused(control: Control, phase: str, number: signal.Signals, members: str, joiners: list[str]) -> None:
    """A grow by these joiners, of whom the first gets the signal in that phase; until all members have gone back."""
    control.spawn(joiners[0], FAIL=f"{phase}:{number}")
    control.spawn(*joiners[1:])
    control.ready(*joiners)
    generation = control.world(*members, *joiners, bound_s=BOUND_S[number], tell=False)
    if number == signal.SIGKILL:
        assert control.exits(joiners[0], hold=True) == [-number], control.story()
        for name in members:  # as the supervisor does when it sees a joiner's end
            control.send(name, {"type": "abort", "generation": generation})
        for name in joiners[1:]:
            control.kill(name)
    for name in members:
        failed = control.wait(
            lambda worker, m, name=name: worker == name and m["type"] == "failed" and m["generation"] == generation,
            timeout_s=100,
        )
        assert failed.get("survived"), (phase, failed)
    assert not [m for m in control.all("running") if m["generation"] == generation], phase
    for name in joiners:
        control.kill(name)


@pytest.mark.parametrize(("number", "phases"), [(signal.SIGKILL, KILLED), (signal.SIGSTOP, STOPPED)])
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=cuts)])
def test_the_old_world_goes_on_whenever_a_joiner_is_lost(
    zygote: Zygote, start: Start, tmp_path: Path, strategy: str, number: signal.Signals, phases: tuple[str, ...]
) -> None:
    """A joiner killed, or stopped, between its arrival and the end of the first step: each time the two survivors
    train on in their processes and say so; then a grow succeeds. No step is lost or done twice, and the parameters
    are those of a training without any of it (float64)."""
    sizes = ["--micro", "12", "--samples", "3003", "--epochs", "1"]  # no grow ends between two passes over the data
    control = start("--hold", "steps", *sizes, "--strategy", strategy)
    control.start("a", "b")
    for place, phase in enumerate(phases):
        refused(control, phase, number, "ab", [f"{phase}{member}" for member in range(1 + place % 2)])
    control.resize("a", "b", "c")
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    found = audit.check(control.audit, samples=3003, epochs=1)
    assert found.ok and found.worlds == 2 and found.restarts == 0 and found.steps == 61, (found, control.story())
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12
