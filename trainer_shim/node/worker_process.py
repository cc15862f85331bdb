"""What a forked worker does before and after the user's script: it looks to the script as if python had started it.

Interpreter teardown is skipped (it costs up to a second with torch), exit handlers and output are not.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from ..control import copies
from . import program, stack_dump
from .torchrun_hints import hint

PR_SET_PDEATHSIG = 1
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""What a job asks Slurm to send before its end (--signal, submitit, preempt_send_user_signal)."""


def run(arguments: list[str], env: dict[str, str], output: int, verdict: int, dump: int, sockets: str) -> NoReturn:
    """Run `script args...` or `-m module args...` in this process and end it with the script's exit code.

    A byte and the error's origin are written to `verdict` when an error, not the script's own sys.exit, ends it.
    dump: where its stacks go when they are asked for. sockets: a folder for those of this process and its loader
    workers, which else make one each and leave it behind when they are killed.
    """
    _leave_parent(output)
    stack_dump.serve(dump)
    if sockets:
        multiprocessing.current_process()._config["tempdir"] = sockets  # type: ignore[attr-defined]
    os.environ.update(env)
    for name in filter(copies.of_a_task, list(os.environ)):  # those of the agent, which is a task of srun's
        del os.environ[name]
    _reseed()
    code = 1
    try:
        _run_script(arguments)
        code = 0
    except SystemExit as stop:
        code = _exit_code(stop)
    except BaseException as error:
        sys.last_type, sys.last_value = type(error), error  # as python does: exit handlers may ask
        _print_error(error)
        os.write(verdict, b"!" + origin(error).encode(errors="replace"))
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """End the process: threads joined, exit handlers run, output flushed; nothing torn down."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code)


def _leave_parent(output: int) -> None:
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # Slurm's SIGTERM goes to every process of a step; whether and when to stop is agreed with the supervisor.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    for number in (signal.SIGTSTP, signal.SIGINT, *NOTICES):
        signal.signal(number, signal.SIG_IGN)  # what a script starts is spared too
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in {null, output} - {0, 1, 2}:
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _reseed() -> None:
    """Forked processes share numpy's random state, which separately started ones do not (random reseeds itself)."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))


def _run_script(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = arguments[0]
    sys.argv = arguments
    sys.path[0] = str(Path(script).resolve().parent)
    main = ModuleType("__main__")
    main.__dict__.update({"__file__": script, "__builtins__": builtins, "__cached__": None})
    sys.modules["__main__"] = main
    exec(compile(program.source(script)[0], script, "exec", dont_inherit=True), main.__dict__)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def origin(error: BaseException) -> str:
    """The error's type and where it was raised; its text may hold a step or an address.

    Empty for what may not come again at the same place: files and connections that failed.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, OSError) or not frames:
        return ""
    return f"{type(error).__qualname__} at {frames[-1].filename}:{frames[-1].lineno}"


def _print_error(error: BaseException) -> None:
    """The traceback as python prints it, or what the script has put in its place: without the frames of this module."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)  # of the two, python's own takes the error's
    if said := hint(error):
        print(f"selastic: {said}", file=sys.stderr)
