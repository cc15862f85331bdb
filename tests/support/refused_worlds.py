"""Worlds that do not come about, and the members of the old one, who go back to it."""

from __future__ import annotations

import signal

from waiting import wait_until
from worker_harness import Control

BOUND_S = {signal.SIGKILL: 20.0, signal.SIGSTOP: 3.0}
"""Of one communication: what nobody is told of ends then."""


def refused(
    control: Control, phase: str, number: signal.Signals, stay: str, joiners: list[str], awaited: bool = False
) -> None:
    """A change to who stays and these joiners, of whom the first gets the signal in that phase; until all members have
    gone back. awaited: those who stay wait for it, in a step of theirs."""
    control.spawn(joiners[0], FAIL=f"{phase}:{number}")
    control.spawn(*joiners[1:])
    control.ready(*joiners)
    for name in stay if awaited else "":
        wait_until((control.directory / f"{name}.awaits").exists, 60, control.story)
    generation = control.world(*stay, *joiners, bound_s=BOUND_S[number], tell=False)
    if number == signal.SIGKILL:
        assert control.exits(joiners[0], hold=True) == [-number], control.story()
        for name in control.members:  # as the supervisor does when it sees a joiner's end
            control.send(name, {"type": "abort", "generation": generation, "lost": True})
        for name in joiners[1:]:
            control.kill(name)
    gone_back(control, generation, phase)
    for name in joiners:
        control.kill(name)


def gone_back(control: Control, generation: int, phase: str) -> None:
    """Wait until every member has gone back to its old world."""
    for name in control.members:
        failed = control.wait(
            lambda worker, m, name=name: worker == name and m["type"] == "failed" and m["generation"] == generation,
            timeout_s=100,
        )
        assert failed.get("survived"), (phase, failed)
    assert not [m for m in control.all("running") if m["generation"] == generation], phase
