"""Checks on a real GPU: each a process of its own with a deadline, one line of a table for each figure.

    python tests/gpu/runner.py --out FOLDER test-gpu bench-gpu

Needs the standard library, torch and this tree; without a GPU test-gpu takes the stand-in of tests/nccl_standin. A
check that fails, or hangs, costs its own time only: its last lines, or its stacks, stand in its row, and its log in
FOLDER. --device cpu tries the checks with small sizes and gloo. What is measured without a GPU means nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARK = "GPU_CHECK_MARK"
"""In the environment of everything that a check starts."""
TOTAL_S = 475.0
GPU_S = 150.0
"""How long torch may take to say what GPU there is: its libraries may come from a slow disk."""
LEAST_S = 8.0
"""A check with less time than this is not begun."""
STACKS_S = 2.0
"""So long before its deadline a check writes its stacks."""


@dataclass(frozen=True)
class Check:
    """One process: `python file --device ... --out ...`."""

    name: str
    what: str
    seconds: float
    """Its deadline."""
    file: str


SUITES = {
    "test-gpu": (
        Check("T0", "fork", 30, "tests/gpu/check_fork.py"),
        Check("T1", "NCCL, one rank", 45, "tests/gpu/check_nccl.py"),
        Check("T3", "resizes", 65, "tests/gpu/check_resizes.py"),
        Check("T4", "compile, graphs", 50, "tests/gpu/check_compile.py"),
        Check("T5", "memory; a busy GPU", 25, "tests/gpu/check_memory.py"),
        Check("T6", "checkpoints", 40, "tests/gpu/check_checkpoints.py"),
        Check("T7", "out of memory", 25, "tests/gpu/check_room.py"),
    ),
    "bench-gpu": (
        Check("B6", "forming", 20, "benchmarks/gpu/bench_forming.py"),
        Check("B4", "overhead", 40, "benchmarks/gpu/bench_overhead.py"),
        Check("B5", "checkpoint pause", 25, "benchmarks/gpu/bench_checkpoint.py"),
        Check("B1", "step times", 55, "benchmarks/gpu/bench_step_times.py"),
        Check("B2", "hand-over", 25, "benchmarks/gpu/bench_hand_over.py"),
        Check("B3", "first step", 20, "benchmarks/gpu/bench_hand_over.py"),
    ),
}
"""All deadlines together: 465 s."""


@dataclass
class Row:
    """What came of a check. figures: name, value, bar, and ok (None: no bar)."""

    name: str
    what: str
    seconds: float = 0.0
    figures: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    """Why it has not come to its end."""

    @property
    def verdict(self) -> str:
        if self.error.startswith("SKIP"):
            return "SKIP"
        return "BAD" if self.error or any(figure["ok"] is False for figure in self.figures) else "OK"


def table(rows: list[Row]) -> str:
    """A line for each check, and one for each of its figures, with the second of the check in which it was known."""
    lines = [f"{'check':24}{'s':>7}  {'verdict':8}{'figure':66} bar"]
    for row in rows:
        lines.append(f"{f'{row.name} {row.what}':24}{row.seconds:>7.1f}  {row.verdict:8}{row.error}".rstrip())
        for figure in row.figures:
            verdict = {True: "OK", False: "BAD", None: ""}[figure["ok"]]
            text = f"{figure.get('at', '')!s:>5} {figure['name']}: {figure['value']}"
            lines.append(f"{'':33}{verdict:8}{text:66} {figure['bar']}".rstrip())
    return "\n".join(lines)


def read_figures(path: Path) -> list[dict[str, Any]]:
    """What a check has written so far; a line that it was killed in is left out."""
    figures = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            figures.append({"bar": "", "ok": None, **json.loads(line)})
    return figures


def last_error(log: str) -> str:
    """The last line of a traceback, or of what was printed at all, with where it was raised; of stacks the top of the
    last thread's, which is the main one."""
    lines = [line for line in log.splitlines() if line.strip()]
    if not lines:
        return "nothing printed"
    if "most recent call first" in log:
        frames = log.rpartition("most recent call first")[2].splitlines()[1:5]
        return " < ".join(line.strip().removeprefix("File ") for line in frames)[:400]
    places = [line.strip() for line in lines if line.strip().startswith('File "')]
    return f"{lines[-1].strip()[:300]}" + (f"  [{places[-1][:160]}]" if places else "")


def run(check: Check, out: Path, device: str, deadline_s: float) -> Row:
    """Run one check to its end or its deadline. What it has started, and left behind, is ended too."""
    row, begun = Row(check.name, check.what), time.monotonic()
    figures, log = out / f"{check.name}.figures.jsonl", out / f"{check.name}.log"
    figures.unlink(missing_ok=True)
    mark = f"{check.name}.{os.getpid()}.{time.time_ns()}"
    env = {**os.environ, MARK: mark, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
    if "lo" in {name for _, name in socket.if_nameindex()}:  # the host's own name may mean nothing
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    env["GPU_CHECK_UNTIL"] = str(time.time() + deadline_s - STACKS_S)
    command = [sys.executable, str(ROOT / check.file), "--device", device, "--out", str(out), "--name", check.name]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=out, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code: int | None = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        left = end_marked(mark, 2.0 if code is not None else 0.0)
        if code is None:
            process.wait(10)
    row.seconds, row.figures = time.monotonic() - begun, read_figures(figures)
    if code is None:
        row.error = f"not done after {deadline_s:.0f} s; stacks in {log.name}: {last_error(log.read_text())}"
    elif code:
        row.error = f"exit code {code}: {last_error(log.read_text())}"
    elif left:
        row.error = f"{left} processes left behind"
    elif not row.figures:
        row.error = "no figures"
    return row


def python_path() -> str:
    own = [str(ROOT / "packaging" / "namespace"), str(ROOT / "tests" / "gpu")]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])


def marked(mark: str) -> list[int]:
    """The processes that live with this mark in their environment."""
    word, found = f"{MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes().split(b"\0") and alive(path.parent):
                found.append(int(path.parent.name))
    return found


def end_marked(mark: str, grace_s: float) -> int:
    """Kill all that has this mark and does not end by itself; how many those were. Workers have process groups of
    their own."""
    until, found = time.monotonic() + grace_s, 0
    while (left := marked(mark)) and time.monotonic() < until + 3:
        if time.monotonic() >= until:
            found = max(found, len(left))
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return found


def alive(folder: Path) -> bool:
    """Whether a process is more than a zombie."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")


def the_gpu() -> dict[str, Any]:
    """What torch says of the first GPU. Raises OSError: there is none, or no torch."""
    lines = (
        "import json, sys, torch",
        "found = torch.cuda.is_available()",
        "print(json.dumps({'torch': torch.__version__, 'python': sys.version.split()[0],",
        "    'gpu': torch.cuda.get_device_name(0) if found else '', 'count': torch.cuda.device_count()}))",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=GPU_S)
        found: dict[str, Any] = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        raise OSError(f"torch does not say within {GPU_S:.0f} s") from None
    except ValueError:
        raise OSError(last_error(answer.stderr)) from None
    if not found["gpu"]:
        raise OSError(f"torch {found['torch']} finds none")
    return found


def take_stand_in() -> str:
    """Have all checks find the stand-in in a GPU's place; why they cannot, in one sentence."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import stand_in

    try:
        os.environ.update(stand_in.environment(here=True), GPU_CHECK_IMPORT="standin")
    except stand_in.Missing as missing:
        return str(missing)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json and the logs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="", help="names of checks, with commas")
    parser.add_argument("--without-gpu", choices=("fail", "skip"), default=os.environ.get("WITHOUT_GPU", "fail"))
    parser.add_argument("suites", nargs="+", choices=tuple(SUITES))
    args = parser.parse_args()
    begun, slower = time.monotonic(), 4 if "GPU_CHECK_IMPORT" in os.environ else 1
    try:
        known = the_gpu() if args.device == "cuda" and "GPU_CHECK_IMPORT" not in os.environ else {"gpu": args.device}
    except OSError as error:
        missing = take_stand_in() if args.suites == ["test-gpu"] else "--device cpu tries the checks without one"
        if missing:
            print(f"no GPU to check on: {error}; {missing}", file=sys.stderr)
            return 0 if args.without_gpu == "skip" else 1
        known, slower = {"gpu": "", "stand-in": str(error)}, 4  # beside other tests, on a few cores
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    only, rows = set(filter(None, args.only.split(","))), []
    for check in (check for suite in args.suites for check in SUITES[suite]):
        if only and check.name not in only:
            continue
        left = slower * TOTAL_S - (time.monotonic() - begun)
        if left < LEAST_S:
            rows.append(Row(check.name, check.what, error="SKIP: no time left"))
        else:
            rows.append(run(check, out, args.device, min(slower * check.seconds, left)))
        print(f"{rows[-1].name} {rows[-1].verdict} {rows[-1].seconds:.1f} s", flush=True)
        document = {**known, "checks": [{**asdict(row), "verdict": row.verdict} for row in rows]}
        (out / "gpu.json").write_text(json.dumps(document, indent=1))
    for row in rows:
        if row.error and not row.error.startswith("SKIP"):
            tail = (out / f"{row.name}.log").read_text().splitlines()[-12:]
            print(f"--- {row.name}.log ends:", *(line[:200] for line in tail), sep="\n")
    print(f"\n{known}  {time.monotonic() - begun:.0f} s\n{table(rows)}", flush=True)
    if "stand-in" in known:
        print("On the stand-in for a GPU and NCCL (tests/nccl_standin), as there is no GPU here: no time above is one.")
    return 1 if any(row.verdict == "BAD" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
