"""What one hostile user costs all others: the time of their reports, of `selastic status` and of the daemon's rounds.

    python benchmarks/bench_abuse.py [--jobs 40] [--seconds 60] [--only ATTACK ...]

A private real Slurm and the real daemon, at its shipped limits, rounds every two seconds. One user has the jobs; their
supervisors are played by one process, which registers them with MUNGE and then sends what supervisors send: a report of
every job each five seconds; it asks for the status each second. Another user's process then does all of this at once,
each as often as it is let: submits jobs with requests that the site does not want, registers jobs that do not exist,
submits fake companions, holds 17,500 connections, sends 2,000 reports to a request, registers 160,000 GPUs, asks for
status and history.
Limit: one machine plays both users, Slurm and the daemon. The hostile process has an address of its own, as on a node
of its own; it shares one core, at nice 19, with Slurm, whose nodes its jobs start on, and the daemon and the other user
share the rest. It still takes caches and memory bandwidth, and munged's and slurmctld's time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pwd
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import _setup  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from free_ports import free_port
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.slurm import CommandClient
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.codec import VERSION, to_json
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.messages import Piece, Registration, Report, Reports

HONEST, HOSTILE = pwd.getpwnam("nobody"), pwd.getpwnam("games")
NODES, GPUS_PER_NODE = 4, 32
BATCH = 240
REQUEST = f"elastic:gpus=1-2,batch={BATCH}"
REPORT_S, STATUS_S = 5.0, 1.0
CONNECTIONS, CONNECTIONS_FROM = 17_500, "127.0.0.2"
REPORTS_AT_ONCE = 2000
GPUS_CLAIMED = 160_000
NO_JOB = 900_000
AT_ONCE = {"reports": 4, "status": 4, "history": 4}
"""Threads; of all else one."""
CPUS = sorted(os.sched_getaffinity(0))
FORK = get_context("fork")
Times = dict[str, list[tuple[float, float]]]
"""What was asked -> when, and how many seconds its answer took."""


def report(number: int) -> Report:
    return Report(1, time.time(), 1, 1, BATCH, BATCH, 1, 10, 0.1, 0.12, 2400.0, 10 * number, 2400 * number, 0)


def become(user: pwd.struct_passwd) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def again(what: Callable[[], object], pause_s: float = 0.0) -> threading.Thread:
    """Do it again and again in a thread of its own; what is refused is tried again, too."""

    def loop() -> None:
        while True:
            with contextlib.suppress(ElasticError, OSError, subprocess.SubprocessError):
                what()
            time.sleep(pause_s)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


# --- the user with the jobs -----------------------------------------------------------------------------------------


def play_supervisors(pipe: Connection, url: str, munge_socket: str, jobs: dict[int, Piece]) -> None:
    """Register, report and ask for the status until told to end; then say how long each answer took."""
    become(HONEST)
    times: Times = {"report": [], "status": []}
    client = Client(url, munge_socket, timeout=120)

    def timed(kind: str, call: Callable[[], object]) -> None:
        began = time.monotonic()
        try:
            call()
        except ElasticError as error:
            print(f"{kind}: {error}", file=sys.stderr)
        times[kind].append((began, time.monotonic() - began))

    tokens = {job: register(client, job, piece) for job, piece in jobs.items()}
    count, turns = Counter[int](), itertools.cycle(tokens)

    def send() -> None:
        job = next(turns)
        count[job] += 1
        body = to_json(Reports((report(count[job]),)))
        timed("report", lambda: client.post(f"/v1/jobs/{job}/reports", body, token=tokens[job]))

    again(send, REPORT_S / len(tokens))
    again(lambda: timed("status", lambda: client.get("/v1/jobs")), STATUS_S)
    pipe.send("registered")
    pipe.recv()
    pipe.send(times)


def register(client: Client, job: int, *pieces: Piece) -> str:
    registration = Registration(VERSION, 1, pieces, BATCH, "train.py")
    return str((client.post(f"/v1/jobs/{job}/register", to_json(registration)) or {})["token"])


# --- the hostile user -----------------------------------------------------------------------------------------------


class Hostile:
    """What one user can do to the daemon with one job of theirs, and how often each was done."""

    def __init__(self, url: str, munge_socket: str, env: dict[str, str], job: int, piece: Piece) -> None:
        self.done: Counter[str] = Counter()
        host, port = url.removeprefix("http://").split(":")
        self._address, self._environment, self._job = (host, int(port)), {**os.environ, **env}, job
        self._client = Client(url, munge_socket, timeout=60)
        self._token = register(self._client, job, piece)
        self._held: list[socket.socket] = []
        self._many = to_json(Reports((report(1),) * REPORTS_AT_ONCE))
        claimed = Piece(job, "base", piece.nodes, GPUS_CLAIMED)
        self._claimed, self._nobody = (
            to_json(Registration(VERSION, 1, (one,), BATCH, "train.py")) for one in (claimed, piece)
        )

    def attacks(self) -> dict[str, Callable[[], object]]:
        client, job = self._client, self._job
        tag = f"--comment=selastic:companion-of={job};resize=1"
        reports, register_own = f"/v1/jobs/{job}/reports", f"/v1/jobs/{job}/register"
        return {
            "requests": lambda: self._submit("unwanted requests", "-n1", f"--comment=\u2003{REQUEST}"),
            "companions": lambda: self._submit("fake companions", "-n1", tag, f"-Jselastic-{job}"),
            "connections": self._connect,
            "reports": lambda: self._ask("2,000 reports", client.post, reports, self._many, token=self._token),
            "status": lambda: self._ask("status", client.get, "/v1/jobs"),
            "history": lambda: self._ask("history", client.get, "/v1/acct"),
            "gpus": lambda: self._ask("160,000 GPUs", client.post, register_own, self._claimed),
            "unknown": lambda: self._ask("no such job", client.post, f"/v1/jobs/{NO_JOB}/register", self._nobody),
        }

    def _slurm(self, *command: str) -> str:
        how = {"env": self._environment, "cwd": "/", "capture_output": True, "text": True, "timeout": 60}
        return str(subprocess.run(command, check=False, **how).stdout).strip()  # type: ignore[call-overload]

    def _submit(self, what: str, *options: str) -> None:
        """Six jobs, which are cancelled again."""
        line = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=sleep 600"]
        jobs = [self._slurm(*line) for _ in range(6)]
        self.done[what] += sum(map(bool, jobs))
        time.sleep(2.0)
        self._slurm("scancel", *filter(None, jobs))

    def _ask(self, what: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
        self.done[what] += 1
        try:
            call(*arguments, **options)
        except ElasticError as error:
            self.done[f"{what}, refused: {str(error)[:60]}"] += 1
            raise

    def _connect(self) -> None:
        """One more connection that says nothing, and a tenth of them anew when there are enough."""
        if len(self._held) >= CONNECTIONS:
            for one in self._held[: CONNECTIONS // 10]:
                one.close()
            del self._held[: CONNECTIONS // 10]
        one = socket.create_connection(self._address, 5, source_address=(CONNECTIONS_FROM, 0))
        one.send(b"POST /v1/jobs/1/reports HTTP/1.1\r\n")
        self._held.append(one)
        self.done["connections"] += 1


def be_hostile(
    pipe: Connection, url: str, munge_socket: str, env: dict[str, str], job: int, piece: Piece, only: list[str]
) -> None:
    """All at once until told to end; then say how often each was done."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.sched_setaffinity(0, {CPUS[-1]})
    os.nice(19)
    become(HOSTILE)
    hostile = Hostile(url, munge_socket, env, job, piece)
    attacks = hostile.attacks()
    for name in only or attacks:
        for _ in range(AT_ONCE.get(name, 1)):
            again(attacks[name])
    pipe.recv()
    pipe.send(hostile.done)


# --- what is measured -----------------------------------------------------------------------------------------------


class Played:
    """A process of one user's, and what it says at its end."""

    def __init__(self, play: Callable[..., None], *arguments: Any) -> None:
        self._ours, theirs = FORK.Pipe()
        self._process = FORK.Process(target=play, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def said(self) -> Any:
        return self._ours.recv()

    def end(self) -> Any:
        self._ours.send("end")
        found = self.said()
        self._process.kill()
        self._process.join()
        return found


@contextlib.contextmanager
def daemon(cluster: Sandbox, folder: Path) -> Iterator[str]:
    """A selasticd; its address."""
    url, config = f"http://127.0.0.1:{free_port()}", folder / "selasticd.toml"
    lines = ['mode = "act"', f'listen = "{url.removeprefix("http://")}"', f'state_dir = "{folder / "state"}"']
    lines += [f'slurm_conf = "{cluster.env["SLURM_CONF"]}"', "round_interval_s = 2", 'learn_prior_at = ""']
    config.write_text("\n".join(lines) + "\n")
    (folder / "state").mkdir()
    command = [sys.executable, "-m", "slurm_elastic.daemon.selasticd.main", "--config", str(config)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "packaging" / "namespace")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    try:
        wait_until(lambda: rounds(url)[0] > 0, 120, (folder / "log").read_text)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def rounds(url: str) -> tuple[int, dict[str, float]]:
    """How many went well, and how long the parts of the last one took."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    except OSError:
        return 0, {}
    well = re.search(r'(?m)^\w+_rounds_total\{outcome="well"\} (\S+)', text)
    parts = re.findall(r'(?m)^\w+_round_seconds\{part="(\w+)"\} (\S+)', text)
    return int(float(well[1])) if well else 0, {part: float(took) for part, took in parts}


def watch(url: str, seconds: float, times: Times) -> None:
    """Add when each round was seen to have ended, how long Slurm's answers took, and all else of it."""
    seen, end = rounds(url)[0], time.monotonic() + seconds
    while time.monotonic() < end:
        count, parts = rounds(url)
        if count != seen:
            slurms = parts.get("observe", 0.0)
            times["Slurm's answers to a round"].append((time.monotonic(), slurms))
            times["all else of a round"].append((time.monotonic(), sum(parts.values()) - slurms))
        seen = count
        time.sleep(0.25)


def submit(cluster: Sandbox, user: str, count: int) -> dict[int, Piece]:
    """Running elastic jobs of one GPU each, and what each of them has."""
    words = ["sbatch", "--parsable", "--output=/dev/null", "-n1", "--gres=gpu:1", f"--comment={REQUEST}"]
    made = [cluster.run([*words, "--wrap=exec sleep infinity"], user=user) for _ in range(count)]
    numbers = [int(one.stdout) for one in made]
    slurm = CommandClient(cluster.env["SLURM_CONF"])
    wait_until(lambda: all(slurm.snapshot().jobs[number].running for number in numbers), 120, "the jobs run")
    jobs = slurm.snapshot().jobs
    return {number: Piece(number, "base", jobs[number].nodes, 1, jobs[number].gpu_type) for number in numbers}


def table(times: Times, began: float, middle: float) -> str:
    """As Markdown: median and 95th percentile in ms, without the hostile user and beside it."""
    lines = ["| | median | p95 | beside it: median | p95 | times (median) | (p95) |", "| --- |" + " ---: |" * 6]
    for kind, values in times.items():
        alone = [took for at, took in values if began <= at < middle]
        beside = [took for at, took in values if at >= middle]
        shown = [f(part) for part in (alone, beside) for f in (statistics.median, p95)]
        ratios = [shown[2] / shown[0], shown[3] / shown[1]]
        cells = [*(f"{1000 * value:.1f} ms" for value in shown), *(f"{ratio:.1f}" for ratio in ratios)]
        lines.append(f"| {kind} ({len(alone)}, {len(beside)}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", nargs="+", default=[], help="requests, companions, connections, reports, ...")
    options = parser.parse_args()
    os.sched_setaffinity(0, {CPUS[-1]})
    spec = SandboxSpec(nodes=NODES, gpus_per_node=GPUS_PER_NODE, cpus_per_node=2 * GPUS_PER_NODE, with_accounting=False)
    with Sandbox.up(spec) as cluster, tempfile.TemporaryDirectory() as name:
        os.sched_setaffinity(0, CPUS[:-1] or CPUS)
        folder = Path(name)
        folder.chmod(0o755)
        jobs = submit(cluster, HONEST.pw_name, options.jobs)
        [(job, piece)] = submit(cluster, HOSTILE.pw_name, 1).items()
        with daemon(cluster, folder) as url:
            munge_socket = str(munge.default_socket(cluster.env["SLURM_CONF"]))
            honest = Played(play_supervisors, url, munge_socket, jobs)
            assert honest.said() == "registered"
            began = time.monotonic()
            seen: Times = {"Slurm's answers to a round": [], "all else of a round": []}
            watch(url, options.seconds, seen)
            hostile = Played(be_hostile, url, munge_socket, cluster.env, job, piece, options.only)
            middle = time.monotonic()
            watch(url, options.seconds, seen)
            times = honest.end() | seen
            print(table(times, began, middle))
            print("done by the hostile user:", dict(hostile.end()))


if __name__ == "__main__":
    main()
