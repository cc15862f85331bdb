"""A pool of tasks on Ray. `tasks_ray.py drain NODES` has Ray take these nodes out of the cluster."""

import os
import subprocess
import sys
import time
from pathlib import Path

import ray

ADDRESS = f"{os.environ['SELASTIC_HEAD']}:6379"
TASKS = int(os.environ.get("TASKS", "100"))
PREEMPTION = "DRAIN_NODE_REASON_PREEMPTION"


@ray.remote(num_gpus=1, max_retries=10)
def task(number: int, folder: str) -> int:
    time.sleep(0.4)
    with (Path(folder) / "done").open("a") as done:
        done.write(f"{number} {os.environ.get('SELASTIC_NODE', 'base')}\n")
    return number


def connect() -> None:
    for _ in range(120):  # the head begins beside us
        try:
            ray.init(ADDRESS, log_to_driver=False)
            return
        except (ConnectionError, RuntimeError, ValueError):
            time.sleep(0.5)
    raise SystemExit("no Ray cluster came up")


def drain(names: list[str]) -> None:
    """Nothing more is begun there, and what is running ends, within the time given."""
    connect()
    going = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeName"] in names]
    for node_id in going:
        words = [
            "--node-id",
            node_id,
            "--reason",
            PREEMPTION,
            "--reason-message",
            "selastic",
            "--deadline-remaining-seconds",
        ]
        subprocess.run(["ray", "drain-node", "--address", ADDRESS, *words, "30"], check=True)
    until = time.monotonic() + 30
    while time.monotonic() < until and any(node["Alive"] and node["NodeID"] in going for node in ray.nodes()):
        time.sleep(0.2)


def main() -> None:
    connect()
    left, since = [task.remote(number, str(Path.cwd())) for number in range(TASKS)], time.monotonic()
    while left:
        _, left = ray.wait(left, num_returns=min(4, len(left)))
        now = time.monotonic()
        Path("speed").write_text(f"{4 / (now - since)}\n")
        since = now
    print(f"{TASKS} tasks done", flush=True)


if sys.argv[1:2] == ["drain"]:
    drain(sys.argv[2].split(","))
else:
    main()
