"""Worlds that do not come about once everyone has arrived: the old one goes on, with nothing lost."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refused_worlds import BOUND_S, gone_back, refused
from waiting import wait_until
from worker_harness import Control, Start, Zygote, alone, difference, result

from slurm_elastic.trainer_shim.data.sampling import Shares, Slicing
from slurm_elastic.trainer_shim.state.kept_parts import State
from slurm_elastic.trainer_shim.training.session import Session
from slurm_elastic.trainer_shim.training.switch import WorldSwitch
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS
from slurm_elastic.trainer_shim.world.process_group import LATER_BOUNDS, World

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
KILLED = ("form", "formed", "fill", "move", "entered", "forward", "backward", "settle")
STOPPED = ("move", "forward") if LATER_BOUNDS else ("move",)
"""Without later bounds a step waits for a member that is stopped as long as for one that evaluates."""
BEFORE_LEAVING = ("leave", "arrive", "open", "form", "connect", "complete", "commit", "take")
AFTER_LEAVING = ("drop", "formed", "entered")
"""The moments of a member that changes worlds."""


@pytest.mark.parametrize(("number", "phases"), [(signal.SIGKILL, KILLED), (signal.SIGSTOP, STOPPED)])
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=cuts)])
def test_the_old_world_goes_on_whenever_a_joiner_is_lost(
    zygote: Zygote, start: Start, tmp_path: Path, strategy: str, number: signal.Signals, phases: tuple[str, ...]
) -> None:
    """A joiner killed, or stopped, between its arrival and the end of the first step: each time the two survivors
    train on in their processes and say so; then a grow succeeds. No step is lost or done twice, and the parameters
    are those of a training without any of it (float64)."""
    sizes = ["--micro", "12", "--samples", "3003", "--epochs", "1"]  # no grow ends between two passes over the data
    control = start("--hold-from", "0", *sizes, "--strategy", strategy)
    control.start("a", "b")
    for place, phase in enumerate(phases):
        refused(control, phase, number, "ab", [f"{phase}{member}" for member in range(1 + place % 2)])
    control.resize("a", "b", "c")
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    control.checked(samples=3003, epochs=1, worlds=2, restarts=0, steps=61)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=cuts)])
def test_whoever_leaves_stays_until_the_new_world_has_done_a_step(
    zygote: Zygote, start: Start, tmp_path: Path, strategy: str
) -> None:
    """One of three leaves while another joins, which is killed on the way; then one leaves, and a connection of one who
    stays breaks: each time all three train on in their processes. Then one leaves and another comes, and nothing was
    lost or done twice."""
    sizes = ["--micro", "12", "--samples", "3003", "--epochs", "1"]
    control = start("--hold-from", "0", *sizes, "--strategy", strategy)
    control.spawn("a", "c")
    control.spawn("b", FAIL="hiccup")
    control.ready("a", "b", "c")
    control.running(control.world("a", "b", "c", source="fresh"))
    for phase in ("form", "move", "forward", "settle"):
        refused(control, phase, signal.SIGKILL, "ab", [phase])
    for phase in ("complete", "entered", "backward"):
        (tmp_path / "hiccup").write_text(phase)
        gone_back(control, control.world("a", "b", bound_s=BOUND_S[signal.SIGKILL], tell=False), phase)
    control.resize("a", "b", "d")
    assert control.exits("a", "b", "c", "d") == [0, 0, 0, 0], control.story()
    control.checked(samples=3003, epochs=1, worlds=2, restarts=0, steps=61)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12


@cuts
def test_who_left_and_who_stayed_count_the_same_steps_of_a_world_that_goes_on(
    zygote: Zygote, start: Start, tmp_path: Path
) -> None:
    """A joiner is lost in the forward pass of a world that one of three left. That step is of neither world: those who
    were in it and the one who waited compare their states behind the same later ones, and so say the same things."""
    sizes = ["--micro", "25", "--samples", "1503", "--epochs", "1"]
    control = start("--hold-from", "0", *sizes, "--strategy", "fsdp")
    control.start("a", "b", "c")
    refused(control, "forward", signal.SIGKILL, "ab", ["d"])
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    control.checked(samples=1503, epochs=1, worlds=1, restarts=0, steps=31)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12


def test_a_size_that_does_not_fit_into_memory_is_refused_and_then_computed_in_smaller_parts(
    zygote: Zygote, start: Start, tmp_path: Path
) -> None:
    """A GPU is full in the forward or the backward pass of a smaller world's first step, also of a world of one: all
    go back in their processes, and say how large it was. The next such world accumulates: nothing is lost."""
    sizes = ["--samples", "3003", "--epochs", "1"]
    control = start("--hold-from", "0", *sizes)
    control.spawn("a", FAIL="hiccup")
    control.start("b")
    control.ready("a")
    control.resize("b", "a")
    for phase, again in (("forward", True), ("backward", False)):
        (tmp_path / "hiccup").write_text(f"{phase} full")
        generation = control.world("a", bound_s=20, tell=False)
        gone_back(control, generation, phase)
        (said,) = [m for m in control.all("no_room") if m["generation"] == generation]
        assert said["again"] is again and "CUDA out of memory" in said["error"]
    control.resize("a")
    assert control.exits("a", "b") == [0, 0], control.story()
    control.checked(samples=3003, epochs=1, worlds=3, restarts=0, steps=61)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12


def test_a_grow_that_fails_at_the_end_of_a_pass_is_no_restart(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """Agreed on with the last step of a pass, where the script's own code comes next: it comes a step later, and the
    old world goes on when a joiner dies in it."""
    control = start("--await-world", "20")
    control.start("a", "b")
    refused(control, "forward", signal.SIGKILL, "ab", ["c"], awaited=True)
    assert control.exits("a", "b") == [0, 0], control.story()
    control.checked(samples=1003, epochs=3, worlds=1, restarts=0)
    assert difference(result(tmp_path), alone(zygote, tmp_path)) < 1e-12


def test_passes_of_one_step_grow(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """Every step is the last one of a pass, and a grow is not put off for ever."""
    sizes = ["--samples", "50", "--epochs", "40"]
    control = start("--hold-from", "0", *sizes)
    control.start("a")
    control.resize("a", "b")
    assert control.exits("a", "b") == [0, 0], control.story()
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12


def withdrawn(control: Control, moment: str, at: str, *members: str, batch: int = 0) -> bool:
    """Announce a world, and take it back while one member is at that moment, as the supervisor does when selasticd
    takes an order back. Whether it has come; the same for all, and nobody has left for it who then turns back.

    batch: another one for the members as they are, in place."""
    control.hold.touch()
    (control.directory / f"pause.{at}").write_text(moment)
    before = list(control.members)
    generation = control.world(*members, batch=batch, in_place=batch > 0, tell=False)
    paused = control.directory / f"paused.{at}"
    wait_until(paused.exists, 60, control.story)
    for name in before:
        control.send(name, {"type": "abort", "generation": generation, "lost": False})
    if moment in BEFORE_LEAVING:
        said(control, generation, "called_off", at)
        for joiner in set(members) - set(before):
            control.kill(joiner)
    paused.unlink()
    ended = control.wait(lambda _, m: m["type"] in ("running", "failed") and m["generation"] == generation)
    come = ended["type"] == "running"
    for name in before:
        said(control, generation, "quiesced" if come else "failed", name)
    assert not [m for m in control.all("failed" if come else "quiesced") if m["generation"] == generation], moment
    control.members = list(members) if come else before
    return come


def said(control: Control, generation: int, kind: str, name: str) -> None:
    control.wait(lambda worker, m: (worker, m["type"], m.get("generation")) == (name, kind, generation))


def test_a_withdrawal_at_any_moment_takes_all_members_or_none(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """A change of worlds is taken back at each moment of a member: rank 0, another one, one that leaves. Before that
    member has left its world nobody changes, from then on all do: nobody waits in vain for others, or turns back alone.
    Nothing is lost or done twice."""
    sizes = ["--micro", "12", "--samples", "15003", "--epochs", "1"]
    control = start("--hold-from", "0", *sizes)
    control.spawn("a", "b", FAIL="pause")
    control.ready("a", "b")
    control.running(control.world("a", "b", source="fresh"))
    for moment in (*BEFORE_LEAVING[:-1], *AFTER_LEAVING):
        late, joiner = moment in AFTER_LEAVING, f"{moment}er"
        control.spawn(joiner)
        assert withdrawn(control, moment, "a", "a", "b") is late, (moment, control.story())
        control.ready(joiner)
        assert withdrawn(control, moment, "b", "a", "b", joiner) is late, (moment, control.story())
        if late:
            control.resize("a", "b")
    control.spawn("c", FAIL="pause")
    control.ready("c")
    control.running(control.world("a", "b", "c"))
    for moment in ("leave", "commit"):
        assert not withdrawn(control, moment, "c", "a", "b"), (moment, control.story())
    assert withdrawn(control, "dismissed", "c", "a", "b"), control.story()
    assert control.exits("a", "b") == [0, 0], control.story()
    control.checked(samples=15003, epochs=1, restarts=0)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12


def test_a_batch_taken_back_at_any_moment_is_taken_by_all_members_or_none(start: Start) -> None:
    """The same of a batch that changes in place: before a member has committed itself nobody takes it, from then on all
    do. No sample is lost or trained on twice."""
    control = start("--hold-from", "0", "--micro", "12", "--samples", "15003", "--epochs", "1")
    control.spawn("a", "b", FAIL="pause")
    control.ready("a", "b")
    control.running(control.world("a", "b", source="fresh"))
    for number, moment in enumerate(("take", "commit", "taken")):
        for who in "ab":
            late = moment == "taken"
            assert withdrawn(control, moment, who, "a", "b", batch=60 + number) is late, (moment, control.story())
    assert control.exits("a", "b") == [0, 0], control.story()
    control.checked(samples=15003, epochs=1, restarts=0, worlds=3)


def test_a_switch_copies_nothing_before_the_gpu_has_done_the_last_step() -> None:
    """Where the last step of the old world hangs the watch ends the wait; no copy waits for it, and none is made."""
    begun: list[bool] = []

    def done() -> None:
        raise torch.distributed.DistBackendError("aborted")

    session: Any = SimpleNamespace(
        state=State(),
        model=lambda: SimpleNamespace(module=torch.nn.Linear(1, 1), sharded=False),
        world=lambda: World(1, 0, 1),
        batch=1,
        slicing=lambda: Slicing(1, Shares(1, 0)),
        reporting=SimpleNamespace(leaving=lambda world, batch: None),
        trackers=SimpleNamespace(leaving=lambda stays: None),
        snapshots=SimpleNamespace(begin=lambda rank_0: begun.append(rank_0)),
        membership=SimpleNamespace(ending_when_broken=contextlib.nullcontext, leave=lambda *given: None),
    )
    switch = WorldSwitch(session)
    switch.watch = SimpleNamespace(done=done)  # type: ignore[assignment]
    coming: Any = SimpleNamespace(rank=0, leave=False)
    with pytest.raises(torch.distributed.DistBackendError, match="aborted"):
        switch.switch(coming)
    assert not begun


@pytest.mark.parametrize(
    ("error", "source", "step", "told"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "survivor", 7, ["no_room", "failed"]),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "survivor", 8, ["failed"]),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), "checkpoint", 7, ["failed"]),
        (ValueError("a script's own"), "survivor", 7, ["failed"]),
    ],
)
def test_a_script_that_ends_as_a_new_world_does_not_fit_has_its_size_refused(
    error: Exception, source: str, step: int, told: list[str]
) -> None:
    """Also where the loop is a framework's, or the script's own, or between two passes: nobody goes back there. Only in
    the first step after a resize; what comes later, or in a world that was started at that size, is the script's."""
    sent: list[dict[str, Any]] = []
    client = SimpleNamespace(send=sent.append, flush=lambda: None)
    membership = SimpleNamespace(client=client, source=source, world=World(3, 0, 2))
    progress = SimpleNamespace(step=step)
    session: Any = SimpleNamespace(
        membership=membership, state=SimpleNamespace(progress=progress), world=lambda: membership.world
    )
    session.world_switch = WorldSwitch(session)
    session.world_switch._entered_at = 7
    session._excepthook = lambda *given: None
    Session._ended_by(session, type(error), error, None)
    assert [message["type"] for message in sent] == told
    assert all(message["generation"] == 3 for message in sent)
    assert not sent[0].get("again")
