"""How many throughput reports selasticd takes in over HTTP: validated, owner checked, on the disk before they are
acknowledged; what that leaves of a core, and how long `selastic status` takes meanwhile.

    python benchmarks/bench_ingest.py [--jobs 2000] [--seconds 10] [--every 30] [--folder DIR]

Three processes: the daemon's server (the API over its real store, with the daemon's own settings of Python; no rounds),
the supervisors, who asks for the status. **CPU seconds are those of the daemon's process alone**, all threads, the
kernel's work for its sockets and its disk included, read from its CPU clock by the parent; what the clients burn is
shown beside it (`clients_cpu_s`) and counts nowhere. Requests carry the headers that the shim's client sends.

`full_N`: supervisors send N reports to a request, the next as soon as the last is acknowledged: all of them for N = 1,
64 otherwise. `jobs_kept`: every job one report per 30 s, as
where a configuration is known, over a connection that it keeps, as supervisors do;
`jobs_polled`: and waits for a resize on another, asked for as often as they do; `jobs_new`: over a new connection
for each report. `jobs_floor`: as `jobs_polled`, but the server looks at nothing and answers at once: what the sockets
and their event loop cost on this machine, whoever serves.
`status_*` is the whole answer as the asker gets it, `daemon_*` the part of it inside the daemon, from the request to
the last byte handed to the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from api_harness import BASE, FakeController, Named, job

from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.api.controller import DaemonController
from slurm_elastic.daemon.api.http_server import server_config
from slurm_elastic.daemon.api.requests import RateLimit
from slurm_elastic.daemon.api.status_cache import REFRESH_S
from slurm_elastic.daemon.rounds.job_registry import JobRegistry
from slurm_elastic.daemon.rounds.waiters import Waiters
from slurm_elastic.daemon.selasticd.daemon import Scheduler
from slurm_elastic.daemon.selasticd.main import tune_interpreter
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import JobKey, JobProofs
from slurm_elastic.protocol.codec import to_json
from slurm_elastic.protocol.messages import Report, Reports, Resize
from slurm_elastic.trainer_shim.allocation.daemon_client import POLL_S

UID = 1000
INTERVAL_S = 30.0
"""Time between two reports of a job: as shipped, once its world and batch have been measured for a minute."""
SENDERS = 64
"""Supervisors of `full_N` that send many reports to a request."""
HOSTS = 100
"""Addresses that supervisors call from."""
ASK_S = 0.1
"""Time between two questions for the status."""
GOAL_SHARE, GOAL_MEDIAN_MS, GOAL_P99_MS = 0.1, 5, 25
"""Of a core with the status asked each second; of the status inside the daemon."""
Times = list[float]
FORK = multiprocessing.get_context("fork")


def message(index: int, key: JobKey, number: int, count: int = 1, *more: str) -> bytes:
    """A request with `count` reports of this job, the last of them with this number, as the shim's client sends it."""
    made = [
        Report(1, time.time(), 4, 1, 256, 64, 1, 10, 0.1, 0.12, 2560.0, 10 * i, 2560 * i, 0, 812.5, 0.01, 20123.0)
        for i in range(number - count + 1, number + 1)
    ]
    content = to_json(Reports(tuple(made)))
    target = f"/v1/jobs/{index + 1}/reports"
    proof = key.prove(munge.bind("POST", target, content))
    lines = (
        f"POST {target} HTTP/1.1", "Host: 127.0.0.1", "Accept-Encoding: identity",
        f"Content-Length: {len(content)}", "Accept: application/json", f"Authorization: Proof {proof}",
        "Content-Type: application/json", *more,
    )  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode() + content


def cpu_s(pid: int) -> float:
    """CPU seconds of a process: all threads, user and kernel (clock_getcpuclockid of the C library)."""
    return time.clock_gettime((~pid << 3) | 2)


def at(times: Times, share: float) -> float:
    """A quantile."""
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else float("nan")


# --- the daemon -----------------------------------------------------------------------------------------------------


def serve(folder: str, jobs: int, listener: socket.socket, pipe: Any) -> None:
    """Be the daemon: send the keys of registrations; then for each line from the parent the number of stored reports,
    and the times inside the daemon of each answer to `status`; None ends."""
    settings = Settings(state_dir=folder, requests_per_s=10_000)
    inside: Times = []
    with Store.open(settings.database_url) as store:
        store.jobs.upsert_all([job(number, UID, "ada") for number in range(1, jobs + 1)])
        for number in range(1, jobs + 1):
            store.allocations.note(number, 1, (BASE,), 256, time.time())
        app = create_app(store, Waiting(store), settings, Named(settings))
        keys = [JobKey(b"", secrets.token_urlsafe()) for _ in range(jobs)]
        for number, key in enumerate(keys, 1):
            store.tokens.note_registration(number, UID, key.name)
            app.callers.registered(number, JobProofs(b"", key.token))
        app.intake.report_limit = RateLimit(1e9)

        class Timed:
            """How long answers to `status` take in here."""

            def __init__(self, app: Any) -> None:
                self._app = app

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                began = time.monotonic()
                await self._app(scope, receive, send)
                if scope["path"] == "/v1/jobs":
                    inside.append(time.monotonic() - began)

        app.add_middleware(Timed)
        tune_interpreter()
        scheduler = Scheduler(lambda: None, 3600, 1)
        scheduler.every(app.status_cache.refresh_ahead, REFRESH_S)
        scheduler.start()
        server = uvicorn.Server(server_config(app, settings))

        async def run() -> None:
            asyncio.get_running_loop().run_in_executor(None, answer)
            await server.serve(sockets=[listener])

        def answer() -> None:
            pipe.send(keys)
            while pipe.recv() is not None:
                with store._db.read() as connection:
                    stored = int(connection.exec_driver_sql("SELECT count(*) FROM reports").scalar() or 0)
                pipe.send((stored, inside.copy()))
                inside.clear()
            server.should_exit = True
            scheduler.stop()

        uvloop.run(run())


class Floor(asyncio.Protocol):
    """Answers whatever comes, at once or, as it is asked, later."""

    answered = 0

    def connection_made(self, transport: Any) -> None:
        """Connected."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A request, taken for whole."""
        if data.startswith(b"GET"):
            wait = float(data.split(b"wait=", 1)[1].split(b" ", 1)[0])
            asyncio.get_running_loop().call_later(wait, self._transport.write, b"HTTP/1.1 204 No Content\r\n\r\n")
        else:
            Floor.answered += 1
            self._transport.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}")


def serve_floor(folder: str, jobs: int, listener: socket.socket, pipe: Any) -> None:
    """Like `serve`, with nothing behind the sockets."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(Floor, sock=listener)
        await loop.run_in_executor(None, answer)

    def answer() -> None:
        pipe.send([JobKey(b"", secrets.token_urlsafe()) for _ in range(jobs)])
        while pipe.recv() is not None:
            pipe.send((Floor.answered, []))

    uvloop.run(run())


@contextlib.contextmanager
def daemon(
    jobs: int, folder: str | None, server: Callable[..., None] = serve
) -> Iterator[tuple[int, tuple[str, int], list[JobKey], Any]]:
    """pid, address, keys and pipe of a daemon's process with this many running jobs."""
    with tempfile.TemporaryDirectory(dir=folder) as place, socket.create_server(("127.0.0.1", 0), backlog=4096) as ear:
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=server, args=(place, jobs, ear, theirs))
        process.start()
        try:
            yield process.pid or 0, ear.getsockname(), ours.recv(), ours
        finally:
            ours.send(None)
            process.join()


class Waiting(FakeController):
    """A controller without rounds, in which supervisors wait for resizes as in the daemon's own."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        nothing: Any = None
        registry = JobRegistry(store, Settings())
        self._own = DaemonController(store, nothing, nothing, registry, Waiters(), lambda: None, 5.0)

    async def wait_resize(self, job_id: int, after: int, timeout: float) -> Resize | None:
        """The daemon's."""
        return await self._own.wait_resize(job_id, after, timeout)


# --- its clients ----------------------------------------------------------------------------------------------------


class Supervisor(asyncio.Protocol):
    """A job's end of a connection."""

    def __init__(self) -> None:
        self._got = b""
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Connected."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of it."""
        self._got += data
        nothing = self._got.startswith(b"HTTP/1.1 204 ") and self._got.endswith(b"\r\n\r\n")
        if (nothing or self._got.endswith(b"}")) and self._answered is not None:
            got, self._got = self._got, b""
            if not nothing and not got.startswith(b"HTTP/1.1 202 "):
                raise SystemExit(got.decode())
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed: by the daemon, when it has been idle for long. No answer comes any more."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(SystemExit(f"the daemon closed a connection before it answered ({exc})"))

    async def send(self, content: bytes, times: Times) -> None:
        """Send a request and wait for its answer."""
        self._answered, began = asyncio.get_running_loop().create_future(), time.monotonic()
        self.transport.write(content)
        await self._answered
        times.append(time.monotonic() - began)

    @classmethod
    async def connected(cls, url: tuple[str, int], index: int) -> Supervisor:
        """One with its connection open, from one of HOSTS addresses: of one the daemon takes no more than 2,048."""
        here = f"127.0.1.{1 + index % HOSTS}", 0
        return (await asyncio.get_running_loop().create_connection(cls, *url, local_addr=here))[1]


async def _full(url: tuple[str, int], keys: list[JobKey], seconds: float, count: int, first: int) -> Times:
    """Each job sends the next `count` reports, from number `first` on, as soon as the last are acknowledged."""
    times: Times = []
    end = time.monotonic() + seconds

    async def supervise(index: int) -> None:
        sender, number = await Supervisor.connected(url, index), first
        while time.monotonic() < end:
            number += count
            await sender.send(message(index, keys[index], number, count), times)

    await asyncio.gather(*(supervise(index) for index in range(len(keys))))
    return times


async def _steady(url: tuple[str, int], keys: list[JobKey], seconds: float, keep: bool, polls: bool) -> Times:
    """Every job a report per INTERVAL_S, spread evenly, and with `polls` a resize waited for."""
    times: Times = []
    start = time.monotonic()
    more = () if keep else ("Connection: close",)

    async def supervise(index: int) -> None:
        number, due, sender = 0, start + index / len(keys) * INTERVAL_S, None
        while due < start + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            number += 1
            sender = sender if keep and sender else await Supervisor.connected(url, index)
            await sender.send(message(index, keys[index], number, 1, *more), times)
            due += INTERVAL_S

    async def poll(index: int) -> None:
        await asyncio.sleep(index / len(keys) * INTERVAL_S)
        sender, wait = await Supervisor.connected(url, index), POLL_S
        share = (index + 1) / len(keys)  # of its time that the first one waits: afterwards they come evenly
        while wait > 0:
            wait, share = min(share * POLL_S, start + seconds - time.monotonic()), 1.0
            target = f"/v1/jobs/{index + 1}/resize?after=0&wait={max(0.0, wait):g}"
            proof = keys[index].prove(munge.bind("GET", target, b""))
            lines = (
                f"GET {target} HTTP/1.1", "Host: 127.0.0.1",
                "Accept-Encoding: identity", "Accept: application/json", f"Authorization: Proof {proof}",
            )  # fmt: skip
            await sender.send("\r\n".join([*lines, "", ""]).encode(), [])

    every = range(len(keys))
    await asyncio.gather(*map(supervise, every), *map(poll, every if polls else ()))
    return times


def _clients(pipe: Any, work: Any, url: tuple[str, int], keys: list[JobKey], *given: Any) -> None:
    for key in keys:
        key._numbers = itertools.count(time.monotonic_ns())  # clients before have used numbers up
    times = uvloop.run(work(url, keys, *given))
    pipe.send((len(times), at(times, 0.5), at(times, 0.99), time.process_time()))


def _ask_status(url: tuple[str, int], seconds: float, every_s: float, pipe: Any) -> None:
    took, end = [], time.monotonic() + seconds
    connection = http.client.HTTPConnection(*url, timeout=30)
    while time.monotonic() < end:
        began = time.monotonic()
        connection.request("GET", "/v1/jobs", headers={"Authorization": f"Test {UID}"})
        text = connection.getresponse().read()
        took.append(time.monotonic() - began)
        assert json.loads(text)["jobs"], "status shows the jobs"
        time.sleep(every_s)
    pipe.send((took, time.process_time()))


# --- what is measured -----------------------------------------------------------------------------------------------


def full(count: int, senders: int, seconds: float, folder: str | None) -> dict[str, float]:
    """`count` reports to a request, as fast as they are acknowledged."""
    with daemon(senders, folder) as (pid, url, keys, pipe):
        _run(_full, url, keys, 0.5, count, 0)  # names remembered, tables warm
        stored, _ = _asked(pipe)
        cpu, wall = cpu_s(pid), time.monotonic()
        sent, median, p99, clients_cpu = _run(_full, url, keys, seconds, count, 1_000_000)
        cpu, wall = cpu_s(pid) - cpu, time.monotonic() - wall
        done = _asked(pipe)[0] - stored
        assert done == sent * count, "every acknowledged report is in the database, once"
    return {
        "reports_per_cpu_s": done / cpu, "reports_per_s": done / wall, "reports": done, "answer_median_s": median,
        "answer_p99_s": p99, "clients_cpu_s": clients_cpu,
    }  # fmt: skip


def steady(
    jobs: int, seconds: float, asked_s: float, keep: bool, polls: bool, folder: str | None,
    server: Callable[..., None] = serve,
) -> dict[str, float]:  # fmt: skip
    """Every job a report per INTERVAL_S; in the second half of the time somebody asks for the status of all."""
    with daemon(jobs, folder, server) as (pid, url, keys, pipe):
        ours, theirs = FORK.Pipe()
        # Turns of every job before the measurement, and one after it.
        given = (_steady, url, keys, seconds + 4 * INTERVAL_S, keep, polls)
        clients = FORK.Process(target=_clients, args=(theirs, *given))
        clients.start()
        theirs.close()  # so that clients which end without a word end this, too
        time.sleep(INTERVAL_S)
        while _asked(pipe)[0] < 1.5 * jobs:  # every name is remembered, and who was late is on time again
            time.sleep(0.5)
        results: dict[str, float] = {"jobs": jobs}
        for name in ("", "with_status_"):
            asker_ours, asker_theirs = FORK.Pipe()
            asker = FORK.Process(target=_ask_status, args=(url, seconds / 2, asked_s, asker_theirs))
            stored, _ = _asked(pipe)
            cpu, wall = cpu_s(pid), time.monotonic()
            if name and server is serve:
                asker.start()
                took, _ = asker_ours.recv()
                asker.join()
            else:
                time.sleep(seconds / 2)
            cpu, wall = cpu_s(pid) - cpu, time.monotonic() - wall
            total, inside = _asked(pipe)
            results |= {
                name + "share_of_a_core": cpu / wall,
                name + "reports_per_s": (total - stored) / wall,
                name + "reports_per_cpu_s": (total - stored) / cpu,
            }
        sent, median, p99, clients_cpu = ours.recv()
        clients.join()
    if server is not serve:
        return {"jobs": jobs, "share_of_a_core": results["share_of_a_core"], "answer_median_s": median, "sent": sent}
    for name, times in (("status", took), ("daemon", inside)):
        results |= {f"{name}_{key}_s": at(times, share) for key, share in (("median", 0.5), ("p99", 0.99), ("max", 1))}
    return {
        **results, "status_asked": len(took), "answer_median_s": median, "answer_p99_s": p99, "sent": sent,
        "clients_cpu_s": clients_cpu,
    }  # fmt: skip


def _asked(pipe: Any) -> tuple[int, Times]:
    pipe.send("")
    return pipe.recv()  # type: ignore[no-any-return]


def _run(*given: Any) -> tuple[int, float, float, float]:
    ours, theirs = FORK.Pipe()
    clients = FORK.Process(target=_clients, args=(theirs, *given))
    clients.start()
    told = ours.recv()
    clients.join()
    return told  # type: ignore[no-any-return]


def _beside_goals(results: dict[str, dict[str, float]]) -> Iterator[str]:
    if polled := results.get("jobs_polled"):
        yield f"share of a core, with status  {polled['with_status_share_of_a_core']:.3f}  (goal {GOAL_SHARE})"
        yield f"status in the daemon, median  {1e3 * polled['daemon_median_s']:.1f} ms  (goal {GOAL_MEDIAN_MS} ms)"
        yield f"status in the daemon, p99     {1e3 * polled['daemon_p99_s']:.0f} ms  (goal {GOAL_P99_MS} ms)"
    if floor := results.get("jobs_floor"):
        yield f"share of a core, a server that does nothing but answer  {floor['share_of_a_core']:.3f}"


def main() -> None:
    """Print the figures as JSON, and those that have goals in words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--folder", default=None, help="where the database lies (default: the temporary directory)")
    parser.add_argument("--only", default="", help="those whose names begin so, with commas between")
    parser.add_argument("--asked-every", type=float, default=ASK_S, help="seconds between two questions for the status")
    parser.add_argument("--every", type=float, default=INTERVAL_S, help="seconds between two reports of a job")
    options = parser.parse_args()
    globals()["INTERVAL_S"] = options.every  # before anything forks
    seconds, folder = options.seconds, options.folder
    senders = {1: options.jobs, 10: SENDERS, 50: SENDERS}
    parts = {f"full_{count}": partial(full, count, many, seconds, folder) for count, many in senders.items()}
    ways = {"jobs_kept": (True, False), "jobs_polled": (True, True), "jobs_new": (False, False)}
    given = (options.jobs, 4 * seconds, options.asked_every)
    parts |= {name: partial(steady, *given, *way, folder) for name, way in ways.items()}
    parts["jobs_floor"] = partial(steady, *given, True, True, folder, serve_floor)
    results = {}
    for name, part in parts.items():
        if name.startswith(tuple(options.only.split(","))):
            results[name] = part()
            print(name, results[name], file=sys.stderr)
    for line in _beside_goals(results):
        print(line, file=sys.stderr)
    print(json.dumps({"cpus": os.cpu_count(), **results}, indent=2))


if __name__ == "__main__":
    main()
