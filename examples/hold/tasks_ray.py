"""A pool of tasks on Ray."""

import os
import time
from pathlib import Path

import ray
from cluster_ray import connect

TASKS = int(os.environ.get("TASKS", "100"))


@ray.remote(num_gpus=1, max_retries=10)
def task(number: int, folder: str) -> int:
    time.sleep(0.4)
    with (Path(folder) / "done").open("a") as done:
        done.write(f"{number} {os.environ.get('SELASTIC_NODE', 'base')}\n")
    return number


def main() -> None:
    connect()
    left, since = [task.remote(number, str(Path.cwd())) for number in range(TASKS)], time.monotonic()
    while left:
        _, left = ray.wait(left, num_returns=min(4, len(left)))
        now = time.monotonic()
        Path("speed").write_text(f"{4 / (now - since)}\n")
        since = now
    print(f"{TASKS} tasks done", flush=True)


main()
