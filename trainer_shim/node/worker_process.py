"""What a forked worker does before and after the user's script: it looks to the script as if python had started it.

Interpreter teardown is skipped (it costs up to a second with torch), exit handlers and output are not. An error
of a script that is as it was under torchrun is said once more in words that say what to write instead.
"""

import atexit
import builtins
import ctypes
import multiprocessing
import os
import re
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import NoReturn

from ..control import copies
from . import program, stack_dump

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


NO_GROUP = "Default process group has not been initialized"
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TASK_VARIABLES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS")
INSTEAD = {
    "DistributedDataParallel": "job.wrap(model, optimizer) or job.replicate(model) in its place",
    "DistributedSampler": "job.loader(dataset), or job.share(n), in its place",
    "init_process_group": "leave it out, the job makes the process groups",
}
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<|/slurm_elastic/trainer_shim/")
_OWN = str(Path(__file__).resolve().parents[1]) + "/"


def hint(error: BaseException) -> str:
    """The sentence; empty for an error that speaks for itself."""
    text = str(error)
    asks = error.args[0] if isinstance(error, KeyError) and error.args else ""
    if asks in VARIABLES + TASK_VARIABLES:
        launcher = "torchrun" if asks in VARIABLES else "srun"
        return (
            f"{_call(error.__traceback__)[0]} asks for {asks}, which {launcher} sets and selastic run does not; "
            "accepted: job.rank and job.world_size inside the loop, and job.device"
            + (", or SELASTIC_DEVICES=node, with which it is set" if asks == "LOCAL_RANK" else "")
        )
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"{_call(error.__traceback__)[0]} ran out of the GPU's memory: a smaller world gives each rank more "
            "samples; accepted: join(micro_batch=...), or job.fit() before the loop"
        )
    if isinstance(error, ValueError) and text.startswith("Invalid rank -1"):
        instead = INSTEAD["DistributedSampler"]
        return f"{_call(error.__traceback__)[0]} needs a rank, and job.rank is -1 before the loop; accepted: {instead}"
    asked = re.search(r"environment variable (\w+) expected, but not set", text)
    if NO_GROUP not in text and not (asked and asked[1] in VARIABLES):
        return ""
    line, name = _call(error.__traceback__)
    if name == "init_process_group" or asked:
        instead = INSTEAD["init_process_group"]
        return f"{line} calls {name}() with what torchrun sets and selastic run does not; accepted: {instead}"
    instead = INSTEAD.get(name, "leave it out, or inside the loop and behind the pass `if job.world_size > 1:`")
    return (
        f"{line} calls {name}(): under selastic run there is no process group before job.next() or job.epochs(), "
        f"nor in a world of one rank, and a worker that joins would wait there alone; accepted: {instead}"
    )


def _call(traceback: TracebackType | None) -> tuple[str, str]:
    """The script's innermost line, and what it calls."""
    line, name, found = "the script", "it", False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not (_LIBRARY.search(code.co_filename) or code.co_filename.startswith(_OWN)):
            line, name, found = f"{Path(code.co_filename).name} line {traceback.tb_lineno}", "it", True
        elif found and name == "it" and code.co_name != "wrapper":
            name = _name(traceback.tb_frame)
        traceback = traceback.tb_next
    return line, name


def _name(frame: FrameType) -> str:
    """Of a function, or of the class that is made."""
    if frame.f_code.co_name == "__init__" and "self" in frame.f_locals:
        return type(frame.f_locals["self"]).__name__
    return frame.f_code.co_name
