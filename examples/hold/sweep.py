"""A sweep of independent tasks: todo/ has one file for each. Usage: sweep.py add N, work NODE, lost NODES.

A rename within one file system is all or nothing: no task is begun twice, and none is forgotten.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

TODO, DONE = Path("todo"), Path("done")
TASK = os.environ.get("TASK", "sleep 0.4")  # in place of: python3 trial.py FILE


def doing(node: str) -> Path:
    return Path(f"doing.{node}")


def back(node: str) -> None:
    """What it has begun is begun anew by another one."""
    for task in doing(node).glob("*"):
        task.rename(TODO / task.name)


def work(node: str) -> None:
    """Take one after the other; the first node stays until all are done, the others until they are told to go."""
    doing(node).mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    total = int(Path("total").read_text())
    while (left := total - len(list(DONE.glob("*")))) or node != "base":
        Path(f"backlog.{node}").write_text(f"{left}\n")
        Path(f"backlog.{node}").replace("backlog")
        for task in sorted(TODO.glob("*")):
            mine = doing(node) / task.name
            try:
                task.rename(mine)
            except FileNotFoundError:  # another node was faster
                continue
            if subprocess.run([*TASK.split(), *([str(mine)] if "trial" in TASK else [])], check=False).returncode == 0:
                mine.rename(DONE / task.name)
            break
        else:
            subprocess.run(["sleep", "0.3"], check=False)


if sys.argv[1] == "add":
    for folder in (TODO, DONE):
        folder.mkdir(exist_ok=True)
    for number in range(int(sys.argv[2])):
        (TODO / f"{number:04d}").write_text(f"learning_rate=0.{number}\n")
    Path("total").write_text(sys.argv[2])
elif sys.argv[1] == "lost":
    for gone in sys.argv[2].split(","):
        back(gone)
else:
    try:
        work(sys.argv[2])
    finally:
        back(sys.argv[2])
