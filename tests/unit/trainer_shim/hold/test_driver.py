"""`selastic hold` as a process, without Slurm: what joins, leaves, fails and ends; the test speaks for selasticd."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from local_run import Run, children
from waiting import wait_until

from slurm_elastic.protocol.messages import Shape

HOLD = ("-m", "slurm_elastic.client.main", "hold", "--job-dir")
JOIN = 'echo "$SELASTIC_NODE_INDEX of $SELASTIC_NODES at $SELASTIC_HEAD" >joined.$SELASTIC_NODE; exec sleep 1000'
LEAVE = 'echo "${lost:-goes} $SELASTIC_LEAVING" >>left'
STAY = 'trap "exit 7" TERM; while [ ! -e end ]; do sleep 0.1; done; exit 3'


def hold(folder: Path, daemon: FakeDaemon, *words: str, join: str = JOIN, leave: str = LEAVE, own: str = STAY) -> Run:
    command = ("--join", join, "--leave", leave, *words, "--", "/bin/sh", "-c", own)
    return Run(folder, *command, daemon=daemon, program=HOLD)


def test_nodes_join_leave_and_are_lost(tmp_path: Path) -> None:
    """The program hears of each; its end ends all, with its exit code."""
    with FakeDaemon() as daemon:
        run = hold(tmp_path, daemon)
        first = daemon.wait_registered()
        assert (first.unit, first.batch, first.program.split()[0]) == ("samples", 1, "/bin/sh")
        daemon.order(1, 0, first.pieces, (Shape(1, 1), Shape(1, 1)))
        assert daemon.wait_phase(1, "running").batch == 3

        def joined() -> list[str]:
            return sorted(path.read_text().split(" at ")[0] for path in tmp_path.glob("joined.*"))

        wait_until(lambda: joined() == ["1 of 3", "2 of 3"], 30, joined)
        grown = daemon.happenings[-1].pieces
        daemon.order(2, 0, grown[:2])
        assert daemon.wait_phase(2, "running").pieces == grown[:2]
        assert (tmp_path / "left").read_text() == f"goes {grown[2].nodes[0]}\n"
        [agent] = [pid for name, pid in agents(run).items() if name.startswith(f"{grown[1].slurm_job_id}.")]
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: f"1 {grown[1].nodes[0]}\n" in (tmp_path / "left").read_text(), 30, run.text)
        wait_until(lambda: daemon.registrations[-1].pieces == first.pieces, 30)
        (tmp_path / "end").touch()
        assert run.wait() == 3
        assert daemon.wait_phase(0, "finished").exit_code == 3


def test_what_does_not_join_goes_back(tmp_path: Path) -> None:
    """A join command that fails, or does not say that it is ready in time: the change has failed, and says why."""
    with FakeDaemon() as daemon:
        run = hold(tmp_path, daemon, "--ready-s", "6", join="[ -e wait ] && exec sleep 1000; echo no port; exit 5")
        base = daemon.wait_registered().pieces
        daemon.order(1, 0, base, (Shape(1, 1),))
        assert "ended with exit code 5: no port" in daemon.wait_phase(1, "failed").detail
        (tmp_path / "wait").touch()
        daemon.order(2, 0, base, (Shape(1, 1),))
        assert "not ready within 6 s" in daemon.wait_phase(2, "failed").detail
        wait_until(lambda: len(agents(run)) == 1, 30, run.text)
        run.process.terminate()
        assert run.wait() == 7


def test_what_hangs_is_bounded(tmp_path: Path) -> None:
    """A leave command that hangs, and a join command that ignores SIGTERM, hold no node longer than the drain time."""
    with FakeDaemon() as daemon:
        join = 'trap "" TERM; echo joined; $SELASTIC tell ready; while :; do sleep 1; done'
        run = hold(tmp_path, daemon, "--drain-s", "2", join=join, leave="exec sleep 1000")
        base = daemon.wait_registered().pieces
        daemon.order(1, 0, base, (Shape(1, 1),))
        daemon.wait_phase(1, "running")
        daemon.order(2, 0, base)
        assert daemon.wait_phase(2, "running").pieces == base
        run.says("the leave command was not done in 2 s")
        wait_until(lambda: len(agents(run)) == 1, 30, run.text)
        run.process.kill()
        run.wait()
        wait_until(lambda: not [pid for pid in children(1) if b"end ]" in cmdline(pid)], 30)


@pytest.mark.parametrize(
    ("join", "why"),
    [
        ("sleep 1000 & exit 0", "ended with exit code 0"),
        ("exec 2>&1; printf '\\377\\000\\033[31mred\\n'; exit 5", "ended with exit code 5: "),
        ("head -c 300000 /dev/urandom; kill -9 $$", "ended with signal 9"),
    ],
)
def test_strange_join_commands_are_given_back(tmp_path: Path, join: str, why: str) -> None:
    """One that puts itself into the background, two that print what is no text; what they have begun is gone, too."""
    with FakeDaemon() as daemon:
        run = hold(tmp_path, daemon, join=join)
        base = daemon.wait_registered().pieces
        daemon.order(1, 0, base, (Shape(1, 1),))
        detail = daemon.wait_phase(1, "failed").detail
        assert why in detail and detail.isprintable(), detail
        wait_until(lambda: len(agents(run)) == 1, 30, run.text)
        wait_until(lambda: not started_in(tmp_path, b"sleep\x001000"), 30)
        (tmp_path / "end").touch()
        assert run.wait() == 3


@pytest.mark.parametrize(
    "leave", ["cat", "cat <&2 & while :; do printf '\\377\\000'; sleep 0.2; done", "no-such-command"]
)
def test_strange_leave_commands_hold_no_node(tmp_path: Path, leave: str) -> None:
    """One that reads what nobody writes, one that never ends and leaves another behind, one that is none."""
    with FakeDaemon() as daemon:
        run = hold(tmp_path, daemon, "--drain-s", "2", leave=leave)
        base = daemon.wait_registered().pieces
        daemon.order(1, 0, base, (Shape(1, 1),))
        daemon.wait_phase(1, "running")
        daemon.order(2, 0, base)
        assert daemon.wait_phase(2, "running").pieces == base
        (tmp_path / "end").touch()
        assert run.wait() == 3
        wait_until(lambda: not started_in(tmp_path, b"cat\0"), 30)


@pytest.mark.parametrize(
    ("own", "code"), [("sleep 1000 & exit 4", 4), ("kill -9 $$", 137), ("exec no-such-command", 127)]
)
def test_the_end_of_the_command_ends_all(tmp_path: Path, own: str, code: int) -> None:
    """Also of one that goes into the background: nothing of it stays."""
    with FakeDaemon() as daemon:
        run = hold(tmp_path, daemon, own=own)
        assert run.wait() == code
        wait_until(lambda: not started_in(tmp_path, b"sleep\x001000"), 30)


def started_in(folder: Path, command: bytes) -> list[int]:
    """Processes with this command line whose folder it is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().startswith(command) and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def agents(run: Run) -> dict[str, int]:
    """By name: they are children of `selastic hold` itself, which has no parent of its own."""
    found = {}
    for pid in children(run.process.pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found.update({word[15:].decode(): pid for word in words if word.startswith(b"SELASTIC_AGENT=")})
    return found


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
