"""What the checks on a GPU share: figures, time that is left, marks on the device, a training under `selastic run`.

GPU_CHECK_IMPORT names a module to import first: a stand-in of CUDA, by which the checks are tried without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

STAND_IN = os.environ.get("GPU_CHECK_IMPORT", "")
if STAND_IN:
    importlib.import_module(STAND_IN)


def left_s() -> float:
    """Seconds until the check's deadline."""
    return float(os.environ.get("GPU_CHECK_UNTIL", time.time() + 120)) - time.time()


def arm() -> None:
    """Write this process's stacks to its log shortly before the deadline; a forked process calls it again."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, left_s()), exit=False)


class Check:
    """The command line of a check, and its figures, which are on disk as soon as they are known."""

    def __init__(self, **options: Any) -> None:
        """options: further ones of the command line, with their defaults."""
        arm()
        self._begun = time.monotonic()
        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda")
        parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
        parser.add_argument("--name", default="check")
        for name, value in options.items():
            parser.add_argument(f"--{name}", default=value, type=type(value))
        self.args = parser.parse_args()
        self.cuda = self.args.device == "cuda"
        self.device = torch.device("cuda", 0) if self.cuda else torch.device("cpu")
        self._path = self.args.out / f"{self.args.name}.figures.jsonl"

    def figure(self, name: str, value: object, ok: bool | None = None, bar: str = "") -> None:
        at = round(time.monotonic() - self._begun, 1)
        line = json.dumps({"name": name, "value": str(value), "ok": ok, "bar": bar, "at": at})
        with self._path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """An error in here is a figure, and the check goes on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = (str(error).splitlines() or [""])[0][:200]
            self.figure(name, f"{type(error).__name__}: {said} [{Path(where.filename).name}:{where.lineno}]", ok=False)


class Mark:
    """A moment in the current stream; on a CPU of the clock."""

    def __init__(self, cuda: bool) -> None:
        self.event: Any = torch.cuda.Event(enable_timing=True) if cuda else None
        self.at = time.perf_counter()
        if cuda:
            self.event.record()

    def until(self, later: Mark) -> float:
        """Seconds; both have to have passed."""
        return self.event.elapsed_time(later.event) / 1000 if self.event is not None else later.at - self.at


def synchronize(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


class Spinner:
    """Keeps the device busy for some seconds; asks nothing of the host."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self._cycles = 0.0
        if cuda and not STAND_IN:
            for cycles in (10**6, 10**8):  # the first one wakes the clocks up
                begun = Mark(True)
                torch.cuda._sleep(cycles)
                ended = Mark(True)
                torch.cuda.synchronize()
                self._cycles = cycles / begun.until(ended)

    def __call__(self, seconds: float) -> None:
        if STAND_IN and self.cuda:
            importlib.import_module("standin_c").busy(seconds)
        elif self.cuda:
            torch.cuda._sleep(int(self._cycles * seconds))
        else:
            time.sleep(seconds)


def used_mb() -> float:
    """MB of the device that anybody has taken."""
    if STAND_IN:
        return float(torch.cuda.memory_allocated()) / 1e6
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e6


@contextlib.contextmanager
def scratch(size: int) -> Iterator[Path]:
    """A folder for this many bytes, in memory where there is room."""
    room = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    folder = tempfile.mkdtemp(prefix="gpu-check-", dir="/dev/shm" if room > 3 * size else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_rank_environment() -> dict[str, str]:
    """As torchrun would have it, with a group of one."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def run_part(command: list[str], seconds: float, env: dict[str, str], folder: Path | None = None) -> str:
    """A process of this check, which writes its stacks if it takes longer; what it printed. Raises RuntimeError."""
    seconds = max(2.0, min(seconds, left_s() - 1))
    env = {**env, "GPU_CHECK_UNTIL": str(time.time() + seconds - 1)}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, late = process.communicate(timeout=seconds)[0], ""
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it has started holds its output open
            process.wait(1)
        printed, late = "", f"not done after {seconds:.0f} s"
    print(printed[-6000:], flush=True)
    if process.returncode:
        lines = [line for line in printed.splitlines() if "Error" in line] or printed.splitlines()[-1:]
        raise RuntimeError(f"ended with {process.returncode} {late} {lines[-1] if lines else ''}")
    return printed


def run_elastic(
    script: Path, words: list[str], nproc: int, folder: Path, preload: str = "", seconds: float = 600.0, **env: str
) -> str:
    """`selastic run` of a script without a daemon, to its end; what it printed. Raises RuntimeError with that."""
    command = [sys.executable, "-m", "slurm_elastic.trainer_shim.supervisor.cli", "--no-daemon", "--nproc", str(nproc)]
    command += ["--job-dir", str(folder / "job")]
    modules = ",".join(filter(None, [preload, STAND_IN]))
    command += ["--preload", modules] if modules else []
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
    try:
        return run_part([*command, str(script), *words], seconds, {**clean, "OMP_NUM_THREADS": "1", **env}, folder)
    except RuntimeError:
        for path in sorted((folder / "job").rglob("*.log")):
            print(f"--- {path.name}", path.read_text(errors="replace")[-4000:], sep="\n", flush=True)
        raise
