"""A pool of tasks on Dask distributed. `tasks_dask.py retire NODES` takes the workers of these nodes out of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

from distributed import Client, Worker, as_completed, get_worker

ADDRESS = f"tcp://{os.environ['SELASTIC_HEAD']}:8786"
TASKS = int(os.environ.get("TASKS", "100"))


def task(number: int) -> int:
    time.sleep(0.4)
    with open("done", "a") as done:
        done.write(f"{number} {get_worker().name}\n")
    return number


def written(name: str, value: float) -> None:
    new = Path(f"{name}.new")
    new.write_text(f"{value}\n")
    new.replace(name)


def works(dask_worker: Worker) -> bool:
    return dask_worker.status.name == "running" or dask_worker.state.executing_count > 0


def main() -> None:
    worker = ["dask", "worker", ADDRESS, "--name=base", "--nthreads=1", "--nworkers=1", "--no-dashboard"]
    scheduler = subprocess.Popen(["dask", "scheduler", "--port=8786", "--no-dashboard"])
    base = subprocess.Popen(worker)
    with Client(ADDRESS, timeout=60) as client:
        left, since = TASKS, time.monotonic()
        for _ in as_completed(client.map(task, range(TASKS), pure=False)):
            left -= 1
            now = time.monotonic()
            if left % 4 == 0:
                written("speed", 4 / (now - since))
                since = now
            written("backlog", left)
    print(f"{TASKS} tasks done", flush=True)
    for process in (base, scheduler):
        process.terminate()


if sys.argv[1:2] == ["retire"]:
    names = sys.argv[2].split(",")
    with Client(ADDRESS, timeout=10) as there:
        workers = [where for where, one in there.scheduler_info(-1)["workers"].items() if one["name"] in names]
        there.retire_workers(workers, close_workers=False, remove=False)  # what they hold moves, and they get no more
        # What they have begun would begin again elsewhere; what only waits there does not begin any more.
        while any(there.run(works, workers=workers).values()):
            time.sleep(0.1)
else:
    main()
