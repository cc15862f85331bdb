"""The main job: elastic training on a private real Slurm, under a running selasticd, every sample accounted for.

It starts a private Slurm (8 nodes x 4 fake GPUs) and selasticd, submits the sbatch scripts beside this file, prints
what happens as it happens, then the reports, then checks what was recorded. Exits 1 when a check does not hold.
Limit: the GPUs are fake, so the time a step takes is made up (fake_gpu.py); nothing else is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_elastic.daemon.sandbox.config import SandboxSpec
from slurm_elastic.daemon.sandbox.lifecycle import Sandbox
from slurm_elastic.protocol.answers.history import one_line
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.codes import EventKind, Reason
from slurm_elastic.protocol.errors import ElasticError

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "tests" / "support"))  # what the tests have, too
from patience import Patience, slowness_now  # noqa: E402

BIN = Path(sys.executable).parent
COUNTED = (
    *(EventKind.RESIZE_GRANTED, EventKind.RESIZE_RUNNING, EventKind.RESIZE_WITHDRAWN, EventKind.RESIZE_FAILED),
    *(EventKind.RUNNING, EventKind.FINISHED),
)
"""Events that say on how many GPUs a job trains."""
SAMPLES = {"chars": 3072, "digits": 1797}
EPOCHS = {"chars": 32, "digits": (10, 14)}
SHORT_EPOCHS = {"chars": 14, "digits": (4, 5)}
"""Without a daemon there is less to show after step 2."""
SETTINGS = """\
mode = "act"
server = {{ listen = "{address}:0", report_interval_s = 1 }}
database.state_dir = "{state}"
slurm.slurm_conf = "{slurm_conf}"
# A demo is over in minutes; a site's cooldowns and horizon are minutes to hours (see docs/reference/settings.md).
rounds.round_interval_s = 2
planner = {{ cooldown_grow_s = 6, cooldown_shrink_s = 3, horizon_s = 60, max_resizes_per_job_hour = 60 }}
resizes.companion_wait_s = {wait_s:.0f}
"""


@dataclass
class Elastic:
    """An elastic job of the demo and what it is to train."""

    job_id: int
    name: str
    samples: int
    epochs: int


@dataclass
class Demo:
    """One run. Everything it makes lies in `dir`; `cluster` is the private Slurm."""

    cluster: Sandbox
    dir: Path
    several: bool = False
    """The private Slurm has several hosts."""
    started: float = field(default_factory=time.monotonic)
    jobs: list[Elastic] = field(default_factory=list)
    daemon: subprocess.Popen[bytes] | None = None
    seen: dict[int, int] = field(default_factory=dict)
    """The last event of each job that was printed."""
    client: Client | None = None
    wanted: dict[int, int] = field(default_factory=dict)
    """GPUs that the last resize of each job is to bring it to."""
    record: list[dict[str, Any]] = field(default_factory=list)
    """Who trained on how many GPUs from when on, and when each part of the story began; figure.py draws it."""

    @property
    def now(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        print(f"[{self.now:6.1f} s] {text}", flush=True)

    def chapter(self, text: str) -> None:
        self.record.append({"s": round(self.now, 2), "chapter": text})
        self.say(text)

    def holds(self, job: str, trains: int, starting: int = 0) -> None:
        self.record.append({"s": round(self.now, 2), "job": job, "trains": trains, "starting": starting})

    def note(self, job: Elastic, kind: str, detail: dict[str, Any]) -> None:
        """Record what an event says of the GPUs that the job trains on, and of those where its workers start."""
        if kind == EventKind.RESIZE_ISSUED:
            self.wanted[job.job_id] = detail["gpus"]
        elif kind in COUNTED and "gpus" in detail:
            trains = 0 if kind == EventKind.FINISHED else detail["gpus"]
            starting = max(0, self.wanted[job.job_id] - trains) if kind == EventKind.RESIZE_GRANTED else 0
            self.holds(f"{job.name} ({job.job_id})", trains, starting)

    @property
    def env(self) -> dict[str, str]:
        conf = {"SELASTIC_CLIENT_CONF": str(self.dir / "state" / "client.json"), "OMP_NUM_THREADS": "1"}
        path = f"{BIN}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        return {**os.environ, **self.cluster.env, **conf, "PATH": path, "PYTHONUNBUFFERED": "1"}

    def start_daemon(self) -> None:
        """Start selasticd and wait until it answers."""
        state = self.dir / "state"
        state.mkdir(exist_ok=True)
        (state / "client.json").unlink(missing_ok=True)
        config = self.dir / "selasticd.toml"
        values = {"state": state, "slurm_conf": self.cluster.env["SLURM_CONF"], "address": self.cluster.layout.address}
        config.write_text(SETTINGS.format(wait_s=40 * slowness_now(), **values))
        with open(self.dir / "selasticd.log", "ab") as log:
            self.daemon = subprocess.Popen(
                [BIN / "selasticd", "--config", config], env=self.env, stdout=log, stderr=log, cwd=self.dir
            )
        os.environ.update({key: self.env[key] for key in ("SELASTIC_CLIENT_CONF", "SLURM_CONF")})
        self.wait("selasticd to answer", self._daemon_answers, 30)

    def _daemon_answers(self) -> bool:
        if self.daemon and self.daemon.poll() is not None:
            log = (self.dir / "selasticd.log").read_text()[-2000:]
            raise ElasticError(f"selasticd ended with exit code {self.daemon.returncode}:\n{log}")
        with contextlib.suppress(ElasticError):
            self.client = Client()
            return self.client.get("/v1/health") is not None
        return False

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def submit(self, script: str, **values: object) -> int:
        """sbatch one of the scripts beside this file; gives the job's id."""
        env = {**self.env, **{key: str(value) for key, value in values.items()}}
        done = subprocess.run(
            ["sbatch", "--parsable", HERE / script], env=env, cwd=self.dir, check=True, capture_output=True, text=True
        )
        return int(done.stdout.split(";")[0])

    def submit_elastic(self, script: str, **values: Any) -> Elastic:
        name = script.split(".")[0]
        job = Elastic(self.submit(script, **values), name, SAMPLES[name], values["EPOCHS"])
        self.jobs.append(job)
        return job

    def squeue(self) -> dict[int, tuple[str, str]]:
        """Job id -> (state, name) of all that Slurm still runs or queues."""
        lines = self.cluster.run(["squeue", "-h", "-o", "%A %T %j"]).stdout.splitlines()
        return {int(words[0]): (words[1], words[2]) for words in map(str.split, lines)}

    def gpus(self, job: Elastic) -> int:
        """GPUs that the job trains on now; 0 when unknown or ended. The answer for all jobs may be seconds old."""
        row = self.ask(f"/v1/jobs/{job.job_id}") or {}
        return (row.get("gpus") or 0) if row.get("state") == "RUNNING" else 0

    def events(self, job: Elastic) -> list[dict[str, Any]]:
        """What selasticd recorded of the job so far, oldest first; nothing while it does not answer."""
        return list((self.ask(f"/v1/jobs/{job.job_id}/events") or {}).get("events", []))

    def shrunk(self, job: Elastic) -> bool:
        """Whether a Slurm job of the elastic job has given up some of its nodes and keeps others.

        On large nodes: or whether one of its companions was given back, for each may be on one node.
        """
        kinds = {EventKind.SHRINK} | ({EventKind.CANCEL} if self.several else set())
        return any(event["kind"] in kinds for event in self.events(job))

    def settled(self) -> bool:
        """Whether every job trains on what the last decision wants it to have; so while the daemon is gone."""
        rows = (self.ask("/v1/jobs") or {}).get("jobs", [])
        return all(row["target_gpus"] in (None, row["gpus"]) for row in rows if row["state"] == "RUNNING")

    def gave_way(self, job: Elastic) -> bool:
        """Whether the job's last resize made room for an ordinary job."""
        ordered = [event["detail"]["reason"] for event in self.events(job) if event["kind"] == EventKind.RESIZE_ISSUED]
        return ordered[-1:] == [Reason.SHRINK_FOR_JOB.value]

    def ask(self, path: str) -> dict[str, Any] | None:
        """The daemon's answer; None while it does not answer."""
        with contextlib.suppress(ElasticError):
            return Client().get(path)
        return None

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition, telling meanwhile what happens to the jobs.

        timeout_s: of a quiet machine. Four times as long on several hosts, where more workers start at a time.
        """
        patience = Patience(timeout_s * (4 if self.several else 1))
        while not condition():
            self.tell()
            self.notice_failures()
            if patience.over():
                raise ElasticError(f"waited {patience} for {what}, in vain; see the logs in {self.dir}")
            time.sleep(0.25)
        self.tell()

    def notice_failures(self) -> None:
        """Raise as soon as a job has failed, with the end of what it wrote."""
        failed = self.cluster.run(["squeue", "-h", "-t", "FAILED,CANCELLED,TIMEOUT,NODE_FAIL", "-o", "%A %T"]).stdout
        for line in failed.splitlines():
            job_id, state = line.split()
            for job in self.jobs:
                if job.job_id == int(job_id):
                    output = (self.dir / f"{job.name}.{job_id}.out").read_text()[-2000:]
                    raise ElasticError(f"{job.name} ({job_id}) is {state}; its output ends with:\n{output}")

    def tell(self) -> None:
        """Print the events that were not printed yet."""
        for job in self.jobs:
            for event in self.events(job):
                if event["id"] > self.seen.get(job.job_id, 0):
                    self.seen[job.job_id] = event["id"]
                    self.note(job, event["kind"], event["detail"])
                    if text := phrase(event["kind"], event["detail"]):
                        self.say(f"  {job.name} ({job.job_id}): {text}")

    def selastic(self, *args: str) -> None:
        """Run a selastic command as a user would, and show it."""
        print(f"\n$ selastic {' '.join(args)}", flush=True)
        subprocess.run([BIN / "selastic", *args], env=self.env, check=True)


def phrase(kind: str, detail: dict[str, Any]) -> str:
    """An event as a sentence; empty for those that a spectator need not see."""
    match kind:
        case EventKind.RESIZE_ISSUED:
            return f"is resized to {detail['gpus']} GPUs, batch {detail['batch']}: {Reason(detail['reason']).meaning}"
        case EventKind.RESIZE_SUBMITTED:
            return "has asked Slurm for a companion; trains on meanwhile"
        case EventKind.RESIZE_READY:
            return f"the companion's workers are ready; still training on {detail['gpus']} GPUs"
        case EventKind.RESIZE_RUNNING if detail["step"]:
            where = f"{detail['gpus']} GPUs, batch {detail['batch']}"
            return f"trains on {where} from step {detail['step']}; the pause was {detail['pause_s']:.2f} s"
        case EventKind.RUNNING | EventKind.RESIZE_RUNNING:
            return f"trains on {detail['gpus']} GPUs, batch {detail['batch']}"
        case EventKind.SHRINK:
            return f"Slurm job {detail['slurm_job_id']} shrunk in place, keeps {','.join(detail['nodes'])}"
        case EventKind.CANCEL:
            return f"Slurm job {detail['slurm_job_id']} given back"
        case EventKind.FINISHED:
            return "has finished its training" if detail["exit_code"] == 0 else f"stopped: {detail['detail']}"
        case EventKind.ENDED:
            return f"has ended: {detail['state']}"
        case EventKind.RESIZE_WITHDRAWN | EventKind.RESIZE_FAILED | EventKind.REFUSED:
            return f"{kind} {one_line(detail)}"
    return ""


def run(demo: Demo, kill: str) -> None:
    """The story, step by step; each step ends when what it says has happened."""
    epochs: dict[str, Any] = SHORT_EPOCHS if kill == "forever" else EPOCHS
    demo.chapter("1. one elastic job, on one node; the other nodes are idle")
    # Slurm and the starts of workers may take longer than the training: while this file is there, it goes on.
    hold = demo.dir / "hold"
    hold.touch()
    chars = demo.submit_elastic("chars.sbatch", SAMPLES=SAMPLES["chars"], EPOCHS=epochs["chars"], MS=16)
    demo.wait("the first job to grow", lambda: demo.gpus(chars) > 4, 90)

    demo.chapter("2. two more elastic jobs arrive; each is given its share")
    digits = [demo.submit_elastic("digits.sbatch", EPOCHS=count, MS=32) for count in epochs["digits"]]
    demo.wait("the two to train on more than they asked for", lambda: all(demo.gpus(job) > 4 for job in digits), 120)
    demo.wait("the first to shrink", lambda: demo.shrunk(chars), 60)
    demo.selastic("status", "-a")
    print(flush=True)
    if kill:
        demo.kill_daemon()
        demo.say("selasticd was killed (SIGKILL)")
    if kill == "restart":
        demo.start_daemon()
        demo.say("selasticd runs again")

    if kill != "forever":
        # A resize under way frees GPUs for a moment, and the ordinary job would need nobody to give way.
        with contextlib.suppress(ElasticError):
            demo.wait("the resizes under way to be over", demo.settled, 60)
        demo.chapter("3. an ordinary job arrives that needs two whole nodes; nothing is idle")
        rigid = demo.submit("rigid.sbatch", SECONDS_HELD=8)
        demo.wait("the ordinary job to start", lambda: demo.squeue().get(rigid, ("", ""))[0] == "RUNNING", 60)
        demo.holds(f"rigid ({rigid})", 8)
        demo.say(f"  rigid ({rigid}) runs")
        gave = [job for job in demo.jobs if demo.gave_way(job)]
        demo.selastic("explain", str((gave or demo.jobs)[0].job_id))
        print(flush=True)
        held = {job.job_id: demo.gpus(job) for job in demo.jobs}
        demo.wait("the ordinary job to end", lambda: rigid not in demo.squeue(), 60)
        demo.holds(f"rigid ({rigid})", 0)
        demo.say(f"  rigid ({rigid}) has ended")
        grown = lambda: any(demo.gpus(job) > held[job.job_id] for job in demo.jobs)  # noqa: E731
        demo.wait("its nodes to be taken back", grown, 60)

    hold.unlink()
    demo.chapter("4. the jobs finish, one by one; those that are left grow")
    demo.wait("all to finish", lambda: not {job.job_id for job in demo.jobs} & set(demo.squeue()), 240)


def reports(demo: Demo) -> None:
    """What a user would ask for."""
    demo.selastic("acct", "-a")
    demo.selastic("explain", str(demo.jobs[0].job_id))


def sentence(result: Any, job: Elastic) -> str:
    """What the record of one training says."""
    if result.ok:
        return (
            f"{result.epochs_seen} epochs of {job.samples} samples, in each every sample exactly once; "
            f"{result.steps} steps, none lost, none done twice; {result.worlds} worlds"
        )
    return (
        f"samples missing: {result.missing}, repeated: {result.repeated}; steps lost: {result.steps_lost}, "
        f"done twice: {result.steps_repeated}; {'; '.join(result.problems)}"
    )


def final_state(demo: Demo, job: Elastic) -> str:
    """How Slurm's accounting says that the job ended; slurmdbd hears of it a moment later than squeue shows it."""
    command = ["sacct", "-n", "-X", "-P", "-o", "State", "-j", str(job.job_id)]
    state = demo.cluster.run(command).stdout.strip()
    patience = Patience(20)
    while state in ("", "RUNNING", "COMPLETING", "RESIZING") and not patience.over():
        time.sleep(0.5)
        state = demo.cluster.run(command).stdout.strip()
    return state


def check(demo: Demo) -> list[str]:
    """What does not hold, one sentence each; from what the workers, Slurm and the accounting recorded."""
    import audited

    wrong = []
    print("\ncheck, from what was recorded:")
    for job in demo.jobs:
        record = demo.dir / f"audit.{job.job_id}"
        result = audited.check(record, job.samples, job.epochs)
        if result.epochs_seen > job.epochs:  # it was held
            result = audited.check(record, job.samples, result.epochs_seen)
        print(f"  {job.name} ({job.job_id}): {sentence(result, job)}")
        if not result.ok:
            wrong.append(f"{job.name} ({job.job_id}): {sentence(result, job)}")
        state = final_state(demo, job)
        if state != "COMPLETED":
            wrong.append(f"{job.name} ({job.job_id}) ended as {state or 'unknown'}, not COMPLETED")
    with contextlib.suppress(ElasticError):
        demo.wait("the companions to be gone", lambda: not demo.squeue(), 30)
    left = demo.squeue()
    print(f"  Slurm jobs left behind: {len(left)}")
    return wrong + [f"job {job} ({name}) is {state}" for job, (state, name) in left.items()]


def workplace() -> Path:
    """A new folder with the training scripts."""
    path = Path(tempfile.mkdtemp(prefix="selastic-demo-"))
    for script in HERE.glob("*.py"):
        shutil.copy(script, path)
    return path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill-daemon", choices=("restart", "forever"), default="", help="SIGKILL selasticd midway")
    parser.add_argument("--hosts", type=int, default=0, metavar="N", help="on N hosts and slurmctld's, in place of one")
    parser.add_argument(
        "--names",
        choices=("full", "loopback", "private"),
        default="full",
        help="which names hosts know, if there are several",
    )
    parser.add_argument("--keep", action="store_true", help="keep logs, checkpoints and the database")
    parser.add_argument("--record", type=Path, help="write who trained on how many GPUs when; figure.py draws it")
    args = parser.parse_args(argv)
    path = workplace()
    wrong = ["it did not come to its end"]
    try:
        wrong = tell_all(path, spec_of(args.hosts, args.names), args.kill_daemon, args.record)
    except (ElasticError, subprocess.SubprocessError) as error:
        wrong = [str(error)]
    finally:
        if args.keep or wrong:
            print(f"logs, checkpoints and the database are kept in {path}")
        else:
            shutil.rmtree(path, ignore_errors=True)
    print("\n".join(f"FAILED: {sentence}" for sentence in wrong) or "all checks hold")
    return 1 if wrong else 0


def spec_of(hosts: int, names: str) -> SandboxSpec:
    """Eight nodes of this host with four GPUs each; or as many GPUs and a few more, on several hosts."""
    if not hosts:
        return SandboxSpec()
    from sandbox_of_hosts.sandbox import HostsSpec

    gpus = 4 * math.ceil(8 / hosts)
    return HostsSpec(nodes=hosts, hosts=names, gpus_per_node=gpus, cpus_per_node=4 * gpus, mem_mb=65536)


def tell_all(path: Path, spec: SandboxSpec, kill: str, record: Path | None) -> list[str]:
    """The whole story on a private Slurm; what does not hold at its end."""
    several = hasattr(spec, "hosts")
    with contextlib.ExitStack() as stack:
        if several:
            from sandbox_of_hosts.sandbox import HostsSandbox

            hosts = stack.enter_context(HostsSandbox.up(spec))
            stack.enter_context(hosts.network())
            demo = Demo(hosts, shutil.copytree(path, hosts.home / path.name), several=True)
        else:
            demo = Demo(stack.enter_context(Sandbox.up(spec)), path)
        where = f"{spec.nodes} {'hosts' if several else 'nodes'}, {spec.gpus_per_node} fake GPUs each"
        demo.say(f"a private Slurm is up: {where}")
        try:
            demo.start_daemon()
            run(demo, kill)
            if kill != "forever":
                reports(demo)
            if record:
                record.write_text(json.dumps(demo.record, indent=1) + "\n")
            return check(demo)
        finally:
            if demo.daemon:
                demo.daemon.terminate()
                Patience(20).end_of(demo.daemon)
            if demo.dir != path:
                shutil.copytree(demo.dir, path, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
