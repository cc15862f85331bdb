"""The Ray cluster of this job. `cluster_ray.py drain NODES SECONDS` has Ray itself take these nodes out of it: nothing
more begins there, and what runs there has so many seconds to end."""

import os
import subprocess
import sys
import time

import ray

ADDRESS = f"{os.environ['SELASTIC_HEAD']}:6379"
REASON = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "selastic")


def connect() -> None:
    for _ in range(120):  # the head begins beside us
        try:
            ray.init(ADDRESS, log_to_driver=False)
            return
        except (ConnectionError, RuntimeError, ValueError):
            time.sleep(0.5)
    raise SystemExit("no Ray cluster came up")


def drain(names: list[str], seconds: str) -> None:
    connect()
    going = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeName"] in names]
    for node_id in going:
        words = ("--address", ADDRESS, "--node-id", node_id, *REASON, "--deadline-remaining-seconds", seconds)
        subprocess.run(["ray", "drain-node", *words], check=True)
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until and any(node["Alive"] and node["NodeID"] in going for node in ray.nodes()):
        time.sleep(0.2)


if __name__ == "__main__":
    drain(sys.argv[2].split(","), sys.argv[3])
