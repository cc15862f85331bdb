"""How many throughput reports selasticd takes in: validated, owner checked, on the disk before they are acknowledged.

    python benchmarks/bench_ingest.py [--jobs 2000] [--seconds 5] [--folder DIR]

`accepted` drives the ASGI application itself (all that this project adds), `http` the whole of it behind uvicorn on a
socket, with one report per request as supervisors send them: over a connection that each keeps, as the shim's client
does, and over a new one each time. CPU seconds are the daemon's, all threads, database
included; the clients are another process. `status` is the answer to `selastic status` for all jobs meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from api_world import BASE, FakeController, Named, job

from slurm_elastic.daemon.api import create_app
from slurm_elastic.daemon.http_server import server_config
from slurm_elastic.daemon.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim.wire import Report, Reports, to_json

UID = 1000
INTERVAL_S = 5.0
"""Time between two reports of a job."""
Headers = list[tuple[bytes, bytes]]


def body(number: int, count: int = 1) -> bytes:
    """A message of `count` reports, the last of them with this number."""
    made = [
        Report(1, time.time(), 4, 1, 256, 64, 1, 10, 0.1, 0.12, 2560.0, 10 * i, 2560 * i, 0, 812.5, 0.01, 20123.0)
        for i in range(number - count + 1, number + 1)
    ]
    return to_json(Reports(tuple(made)))


@contextlib.contextmanager
def world(folder: str, jobs: int) -> Iterator[tuple[Store, Any, list[str]]]:
    """A store with this many running jobs, the application, and a token for each job."""
    settings = Settings(state_dir=folder, requests_per_s=10_000)
    with Store.open(settings.database_url) as store:
        store.upsert_jobs([job(number, UID, "ada") for number in range(1, jobs + 1)])
        for number in range(1, jobs + 1):
            store.set_in_use(number, 1, (BASE,), 256, time.time())
        tokens = [store.mint_token(number, UID) for number in range(1, jobs + 1)]
        yield store, create_app(store, FakeController(), settings, Named(settings)), tokens


async def call(app: Any, method: str, path: str, headers: Headers, content: bytes = b"") -> tuple[int, bytes]:
    """One request to an ASGI application, with no socket between."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers, "server": ("x", 1),
    }  # fmt: skip
    messages = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def accepted(app: Any, tokens: list[str], seconds: float, count: int, workers: int) -> int:
    """Reports acknowledged by the application while `workers` requests are always under way."""
    done, end = 0, time.monotonic() + seconds

    async def worker(part: int) -> None:
        nonlocal done
        numbers = dict.fromkeys(range(part, len(tokens), workers), 0)
        while time.monotonic() < end:
            for index in numbers:
                numbers[index] += count
                headers = [(b"authorization", b"Bearer " + tokens[index].encode())]
                path = f"/v1/jobs/{index + 1}/reports"
                status, text = await call(app, "POST", path, headers, body(numbers[index], count))
                if status != 202:
                    raise SystemExit(f"{status}: {text!r}")
                done += count
                if time.monotonic() > end:
                    return

    await asyncio.gather(*(worker(part) for part in range(workers)))
    return done


def bench_accepted(folder: str, jobs: int, seconds: float, count: int) -> dict[str, float]:
    """`count` reports to a request, straight into the application."""
    with world(folder, jobs) as (store, app, tokens):
        asyncio.run(accepted(app, tokens, 0.3, count, 64))  # tokens remembered, tables warm
        making = time.process_time()
        for number in range(2000 // count):
            body(number, count)
        making = (time.process_time() - making) / (2000 // count * count)
        cpu, wall, before = time.process_time(), time.monotonic(), _stored(store)
        done = asyncio.run(accepted(app, tokens, seconds, count, 64))
        cpu, wall = time.process_time() - cpu - making * done, time.monotonic() - wall
        assert _stored(store) - before == done, "every acknowledged report is in the database"
    return {"reports_per_cpu_s": done / cpu, "reports_per_s": done / wall, "reports": done}


def _stored(store: Store) -> int:
    with store._db.read() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM reports").scalar() or 0)


def _clients(url: tuple[str, int], tokens: list[str], seconds: float, keep: bool, out: Any) -> None:
    """Every job a report per INTERVAL_S, spread evenly; over one connection each (`keep`), or a new one each time."""
    late: list[float] = []

    async def supervisor(index: int, start: float) -> None:
        await asyncio.sleep(index / len(tokens) * INTERVAL_S)
        number, due, streams = 0, time.monotonic(), None
        while due < start + seconds:
            number += 1
            content = body(number)
            head = f"POST /v1/jobs/{index + 1}/reports HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens[index]}\r\n"
            close = "" if keep else "Connection: close\r\n"
            began = time.monotonic()
            reader, writer = streams = streams or await asyncio.open_connection(*url)
            writer.write(f"{head}{close}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            answer = await reader.readuntil(b"}")
            if b" 202 " not in answer:
                raise SystemExit(answer.decode())
            if not keep:
                writer.close()
                streams = None
            late.append(time.monotonic() - began)
            due += INTERVAL_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def run() -> None:
        start = time.monotonic()
        await asyncio.gather(*(supervisor(index, start) for index in range(len(tokens))))

    asyncio.run(run())
    late.sort()
    out.send((len(late), late[len(late) // 2], late[int(len(late) * 0.99)]))


def bench_http(folder: str, jobs: int, seconds: float, keep: bool) -> dict[str, float]:
    """Every job sends one report per INTERVAL_S; `status` of all jobs is asked twice a second."""
    with world(folder, jobs) as (store, app, tokens):
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        server = uvicorn.Server(server_config(app, Settings()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        clients = context.Process(
            target=_clients, args=(listener.getsockname(), tokens, seconds + INTERVAL_S, keep, theirs)
        )
        asker_ours, asker_theirs = context.Pipe()
        asker = context.Process(target=_ask_status, args=(listener.getsockname(), seconds, asker_theirs))
        clients.start()
        asker.start()
        thread.start()
        time.sleep(INTERVAL_S)  # every job has sent its first report now
        cpu, wall, before = time.process_time(), time.monotonic(), _stored(store)
        time.sleep(seconds)
        cpu, wall, done = time.process_time() - cpu, time.monotonic() - wall, _stored(store) - before
        sent, median, p99 = ours.recv()
        asked, status_median, status_p99 = asker_ours.recv()
        clients.join()
        asker.join()
        server.should_exit = True
        thread.join()
    return {
        "jobs": jobs, "reports_per_s": done / wall, "share_of_a_core": cpu / wall, "reports_per_cpu_s": done / cpu,
        "answer_median_s": median, "answer_p99_s": p99, "status_asked": asked, "status_median_s": status_median,
        "status_p99_s": status_p99, "sent": sent,
    }  # fmt: skip


def _ask_status(url: tuple[str, int], seconds: float, out: Any) -> None:
    import http.client

    time.sleep(5)
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(*url, timeout=30)
        began = time.monotonic()
        connection.request("GET", "/v1/jobs", headers={"Authorization": f"Test {UID}"})
        answer = connection.getresponse()
        rows = json.loads(answer.read())["jobs"]
        took.append(time.monotonic() - began)
        assert rows, "status shows the jobs"
        connection.close()
        time.sleep(0.5)
    took.sort()
    out.send((len(took), took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]))


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--folder", default=None, help="where the database lies (default: the temporary directory)")
    options = parser.parse_args()
    results = {}
    for name, count in (
        ("accepted_1_per_request", 1),
        ("accepted_10_per_request", 10),
        ("accepted_100_per_request", 100),
    ):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results[name] = bench_accepted(folder, 200, options.seconds, count)
            print(name, results[name], file=sys.stderr)
    for name, keep in (("http_kept_connections", True), ("http_new_connections", False)):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results[name] = bench_http(folder, options.jobs, max(10.0, options.seconds), keep)
            print(name, results[name], file=sys.stderr)
    print(json.dumps({"cpus": os.cpu_count(), **results}, indent=2))


if __name__ == "__main__":
    main()
