"""Where a worker's threads are, asked from outside with SIGQUIT; faulthandler of Python's own answers.

Its handler is written in C, so a worker answers that holds the GIL in an extension, or waits in a collective. Limits:
none answers that is stopped, or in a system call that no signal interrupts; and a script that takes SIGQUIT for itself
gets it.
"""

import contextlib
import faulthandler
import os
import re
import signal
from pathlib import Path

SIGNAL = signal.SIGQUIT
MOST_FRAMES = 60
LONGEST_FRAME = 300
_BELOW_SCRIPT = "/node/worker_process.py:"
_THREAD = re.compile(r"(Current thread|Thread) 0x")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def serve(descriptor: int) -> None:
    """In a worker: write every thread's stack to this descriptor when it is asked."""
    faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)


def ask(pid: int) -> str:
    """Ask one process, which writes soon. Returns why it does not; empty when it may be expected to."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        if not int(status["SigCgt"], 16) >> (SIGNAL - 1) & 1:
            return "has not begun its script"  # the signal would end it
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, SIGNAL)
        state = status["State"].split()[0]
    except (OSError, KeyError, ValueError):
        return "has ended"
    return {"T": "is stopped by a signal", "t": "is stopped by a debugger", "Z": "has ended"}.get(state, "")


def main_thread(dump: str) -> tuple[str, ...]:
    """Of a dump, the frames of the thread that runs the script, innermost first, each as `file:line function`."""
    threads: list[list[str]] = []
    current: list[str] | None = None
    for line in dump.splitlines():
        if found := _THREAD.match(line):
            threads.append([])
            current = threads[-1] if found[1] == "Current thread" else current
        elif threads and (frame := _FRAME.fullmatch(line)):
            threads[-1].append(f"{frame[1]}:{frame[2]} {frame[3]}"[-LONGEST_FRAME:])
    # The kernel gives a process's signal to its main thread if it can; that thread is also the oldest, and comes last.
    frames = current or (threads[-1] if threads else [])
    below = next((i for i, frame in enumerate(frames) if _BELOW_SCRIPT in frame), len(frames))
    return tuple(frames[: below or 1][:MOST_FRAMES])
