"""The killing campaign: elastic jobs train on a real Slurm under a real selasticd, resizes are provoked by ordinary
jobs that come and go, and in the middle of them something is killed. After each round everything must be right again.

Deterministic in what it chooses (the seed), not in what happens: that is the point. Limit: fake GPUs.
"""

from __future__ import annotations

import contextlib
import json
import random
import shlex
import sqlite3
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import audited
import kill_targets
from kill_actions import HEALED_FIRST, SETTLE_S, Kills
from kill_ground import NETWORK, Ground
from live_daemon import ROOT, Selasticd
from waiting import wait_until

SAMPLES = 9000
REQUEST = "elastic:gpus=1-4,batch=16-64"
STARTED_TWICE = "launch failed requeued held"
STAGES = ("issued", "accepted", "submitted", "granted", "ready", "running")
TRAIN = """
import os, sys, time, torch
import slurm_elastic.trainer_shim as elastic
samples, nap = int(sys.argv[1]), float(sys.argv[2])
job = elastic.join(batch=16, max_batch=64, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(samples, 4), torch.randint(0, 3, (samples,)))
model = torch.nn.Linear(4, 3).to(job.device)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in job.epochs(1):
    for x, y in job.loader(data):
        job.step(torch.nn.functional.cross_entropy(net(x), y))
        time.sleep(0 if os.path.exists('go') else nap * len(x))
"""
SCRIPT = """#!/bin/bash
{exports}
for attempt in $(seq 40); do
    {run} && exit 0
    echo "selastic run ended with $?; attempt $attempt"
    sleep 0.2
done
exit 1
"""


@dataclass
class Trained:
    """One elastic job of the campaign."""

    job_id: int
    folder: Path
    address: str
    """Its own way to the daemon, which can be cut."""
    silent: int = 0


@dataclass
class Counts:
    """What was done and found."""

    kills: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    settle_s: list[float] = field(default_factory=list)
    rounds_after: list[int] = field(default_factory=list)
    restarts: int = 0
    worlds: int = 0
    forgotten: int = 0
    """Times that Slurm had to be reminded of a job's end or start that it had known before its slurmctld died."""

    def text(self) -> str:
        settle = sorted(self.settle_s) or [0.0]
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        stages = ", ".join(f"{count} {name}" for name, count in sorted(self.stages.items()))
        return (
            f"{self.kills.total()} kills ({kills}) in {len(self.settle_s)} rounds, at {stages}; "
            f"{self.jobs} jobs trained to the end in {self.worlds} worlds with {self.restarts} restarts; "
            f"right again after {settle[len(settle) // 2]:.1f} s (median), {settle[-1]:.1f} s (worst), "
            f"at most {max(self.rounds_after, default=0)} rounds after the last resize; "
            f"slurmctld was reminded of {self.forgotten} ends and starts"
        )


class Campaign:
    """`run(rounds)`; raises AssertionError at the first thing that does not come right again."""

    def __init__(
        self, selasticd: Selasticd, seed: int, kinds: tuple[str, ...] = (), ground: type[Ground] = Ground
    ) -> None:
        """kinds: of those that are possible on this ground; all of them, if none of these is."""
        self.daemon, self.sandbox = selasticd, selasticd.sandbox
        self.chance = random.Random(seed)
        self.ground = ground(self.sandbox, self.chance)
        self.counts = Counts()
        self.jobs: list[Trained] = []
        self.number = 0
        self.rigid: list[int] = []
        self.filler = ""
        self.reminded = 0.0
        self.kills = Kills(self)
        self.options: tuple[str, ...] = ()
        """Further options of the elastic jobs."""
        self.kinds = tuple(kind for kind in kinds if kind in self.possible()) or self.possible()

    def possible(self) -> tuple[str, ...]:
        """All that can happen here."""
        return self.ground.kinds

    # --- jobs -------------------------------------------------------------------------------------------------

    def fill(self, nodes: int = 0, partition: str = "main") -> None:
        """nodes: 0 for as many as the ground says."""
        size = [f"-N{nodes or self.ground.filled}", f"--gres=gpu:a100:{self.ground.gpus}"]
        command = ["salloc", "--no-shell", *size, f"--partition={partition}", "--time=600"]
        answer = self.sandbox.run([*command, "-Jfiller"])
        assert answer.returncode == 0, answer.stderr
        self.filler = answer.stderr.rpartition("job allocation ")[2].split()[0]

    def submit(self, request: str = REQUEST, gpus: int = 1, nap_s: float = 0.012) -> Trained:
        """An elastic job that starts with `gpus` GPUs on one node. nap_s: per sample, until its end is wanted."""
        self.number += 1
        folder = self.daemon.folder / f"train{self.number}"
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        address = self.ground.way(self.number)
        values = {
            "PYTHONPATH": str(ROOT / "packaging/namespace"),
            "OMP_NUM_THREADS": "1",
            "SELASTIC_URL": f"http://{address}:{self.daemon.port}",
            "SELASTIC_ORPHAN_S": "2",
            "SLURM_CONF": self.sandbox.env["SLURM_CONF"],
        }
        exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in values.items())
        program = f"{sys.executable} -m slurm_elastic.trainer_shim.supervisor.cli --audit audit --checkpoint-every 1"
        script = folder / "job.sh"
        script.write_text(SCRIPT.format(exports=exports, run=f"{program} train.py {SAMPLES} {nap_s}"))
        command = ["sbatch", "--parsable", f"--chdir={folder}", "--output=out.txt", "--open-mode=append", "--requeue"]
        options = ["-N1", f"--gres=gpu:a100:{gpus}", "--time=60", "--mem=1G", f"-Jtrain{self.number}", *self.options]
        options.append(f"--comment={request}")
        answer = self.sandbox.run([*command, *options, str(script)])
        assert answer.returncode == 0, answer.stderr
        job = Trained(int(answer.stdout), folder, address)
        self.jobs.append(job)
        return job

    def toggle_rigid(self) -> None:
        """An ordinary job comes, or goes: something has to be resized."""
        if self.rigid:
            # By name too: a slurmctld that has forgotten it gives its number to another job.
            self.sandbox.run(["scancel", "--name=rigid", str(self.rigid.pop())])
            return
        command = ["sbatch", "--parsable", "--output=/dev/null", "-Jrigid", "--time=60"]
        command.append(f"--gres=gpu:a100:{self.ground.gpus}")
        answer = self.sandbox.run([*command, *self.rigid_options(), "--wrap", "sleep 3000"])
        assert answer.returncode == 0, answer.stderr
        self.rigid.append(int(answer.stdout))

    def rigid_options(self) -> tuple[str, ...]:
        """What the next ordinary job asks for."""
        return ("-N1",)

    # --- what is seen -----------------------------------------------------------------------------------------

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        path = self.daemon.state / "selastic.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def open_resizes(self) -> dict[int, str]:
        return dict(self.rows("select open_job, state from resizes where open_job is not null"))

    def problems(self) -> list[str]:
        """What is not right now, one sentence each."""
        try:
            health = self.daemon.client().get("/v1/health", token="none") or {}
            queue = self.daemon.jobs()
        except Exception as error:
            return [f"cannot look: {error}"]
        wrong = [f"daemon: {health}"] if health.get("trouble") or health.get("mode") != "act" else []
        used = dict(self.rows("select job_id, pieces from in_use"))
        plan = dict(self.rows("select job_id, gpus_to from decisions order by id"))
        opened = self.open_resizes()
        live = {job.job_id for job in self.jobs}
        for job in self.jobs:
            held = queue.get(job.job_id)
            if held is None or not held.running:
                wrong.append(f"job {job.job_id} is {held.state + ' ' + held.reason if held else 'gone'}")
                continue
            gpus = self.daemon.held(job.job_id)
            trains = sum(len(p["nodes"]) * p["gpus_per_node"] for p in _pieces(used.get(job.job_id)))
            if job.job_id in opened:
                wrong.append(f"job {job.job_id} is at {opened[job.job_id]}")
            if not gpus == trains == plan.get(job.job_id):
                wrong.append(f"job {job.job_id} holds {gpus}, trains on {trains}, planned {plan.get(job.job_id)}")
        for one in queue.values():
            if one.name.startswith("selastic-") and int(one.name.removeprefix("selastic-")) not in live:
                wrong.append(f"companion {one.job_id} of {one.name} is left")
            if "Held" in one.reason:
                wrong.append(f"job {one.job_id} is held: {one.reason}")
        return wrong

    def settle(self) -> None:
        """Everything is right again, and finished jobs were trained right."""
        begun, moved = time.monotonic(), 0
        last: list[str] = []

        def right() -> bool:
            nonlocal moved, last
            self.reap()
            self.remind()
            last = self.problems()
            if any(" is at " in sentence or "daemon" in sentence or " is " in sentence for sentence in last):
                moved = self.daemon_rounds()
            return not last

        wait_until(right, SETTLE_S, lambda: f"{last}\n{self.story()}", every=0.1)
        self.counts.settle_s.append(time.monotonic() - begun)
        self.counts.rounds_after.append(max(0, self.daemon_rounds() - moved) if moved else 0)

    def daemon_rounds(self) -> int:
        try:
            return int((self.daemon.client().get("/v1/health", token="none") or {}).get("rounds", 0))
        except Exception:
            return 0

    def reap(self) -> None:
        """Jobs that have ended must have ended well, with every sample seen once."""
        queue = self.daemon.slurm.snapshot().jobs if self.slurm_answers() else None
        for job in [job for job in self.jobs if queue is not None and job.job_id not in queue]:
            state = self.field(job.job_id, "JobState")
            if state in ("COMPLETING", ""):
                continue
            assert state == "COMPLETED" or self.ended_after_its_grace(job.job_id, state), (
                f"job {job.job_id} ended as {state}\n{self.story()}"
            )
            result = audited.check(job.folder / "audit", SAMPLES, 1)
            assert result.ok, f"job {job.job_id}: {result}\n{self.story()}"
            self.jobs.remove(job)
            self.counts.jobs += 1
            self.counts.worlds += result.worlds
            self.counts.restarts += result.restarts

    def ended_after_its_grace(self, job_id: int, state: str) -> bool:
        """Slurm's TIMEOUT for a preempted job that ends well by itself after its grace, before it is put back: there
        are some seconds between, many where slurmctld was started anew meanwhile."""
        preempted = self.field(job_id, "PreemptTime") not in ("", "None")
        return state == "TIMEOUT" and preempted and self.field(job_id, "ExitCode") == "0:0"

    def remind(self) -> None:
        """What Slurm itself needs an admin for, after a slurmctld that died had not saved its last seconds.

        A job whose end it forgot stays RUNNING until its node registers, and is then requeued. One whose start it
        forgot it starts again beside the one that runs: that launch fails, the job is held and the node drained.
        """
        if time.monotonic() - self.reminded < 5 or not self.slurm_answers():
            return
        self.reminded = time.monotonic()
        queue = self.daemon.jobs()
        alive = {one.job for one in kill_targets.processes(self.sandbox)}
        for job in self.jobs:
            held = queue.get(job.job_id)
            if held is not None and held.running and str(job.job_id) not in alive and self.slept(job):
                self.counts.forgotten += 1
                self.sandbox.run(["scontrol", "reconfigure"])
            elif str(job.job_id) in alive:
                job.silent = 0
            elif held is not None and held.reason == STARTED_TWICE:
                self.counts.forgotten += 1
                for node, flags in self.daemon.slurm.snapshot().nodes.items():
                    if "DRAIN" in flags.flags:
                        self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
                self.sandbox.run(["scontrol", "release", str(job.job_id)])

    def slept(self, job: Trained) -> bool:
        """Whether a job has had no process at two looks in a row, so that it is not just starting."""
        job.silent += 1
        return job.silent > 1

    def slurm_answers(self) -> bool:
        return "UP" in self.sandbox.run(["scontrol", "ping"]).stdout

    def field(self, job_id: int, name: str) -> str:
        shown = self.sandbox.run(["scontrol", "-o", "show", "job", str(job_id)]).stdout
        return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")

    def story(self) -> str:
        outs = [f"--- {job.job_id}\n{_tail(job.folder / 'out.txt')}" for job in self.jobs]
        log = self.sandbox.dir / "log" / "slurmctld.log"
        live = [
            f"{one.pid} {one.parent} job {one.job} {one.command[:60]!r}" for one in kill_targets.processes(self.sandbox)
        ]
        return "\n".join([self.counts.text(), self.daemon.log(), *outs, _tail(log), *live])

    # --- the campaign -----------------------------------------------------------------------------------------

    def begin(self, jobs: int) -> None:
        self.fill()
        for _ in range(jobs):
            self.submit()
        self.settle()
        self.before_kills()
        self.counts.settle_s.clear()
        self.counts.rounds_after.clear()

    def run(self, rounds: int, kills: int, jobs: int) -> Counts:
        """`rounds` rounds of up to `kills` kills each, always with `jobs` jobs; then let them come to their ends.

        The totals are printed in any case."""
        try:
            self._rounds(rounds, kills, jobs)
            self.end()
        finally:
            print(self.counts.text(), flush=True)
        return self.counts

    def _rounds(self, rounds: int, kills: int, jobs: int) -> None:
        self.begin(jobs)
        for number in range(rounds):
            while len(self.jobs) < jobs:
                self.submit()
            chosen = self.ground.choose(self.kinds, kills)
            # Without it the others' victims cannot be found; and it must have heard of all bases before it dies.
            chosen.sort(key=lambda kind: (kind == "slurmctld", "slurmctld" in chosen and kind in NETWORK))
            stage = self.chance.choice(STAGES)
            at = self.provoke(stage)
            print(f"round {number + 1}: {' + '.join(chosen)} at {at}", flush=True)
            self.counts.stages[at] += 1
            found = {kind: self.kills.one(kind) for kind in chosen}
            order = (*HEALED_FIRST, *(kind for kind in chosen if kind != "base"), "base")
            heals = [found[kind] for kind in order if found.get(kind)]
            time.sleep(self.chance.choice(self.ground.stays_s))  # how long it stays dead, not a wait for anything
            for heal in heals:
                heal()
            self.after_kills()
            self.settle()
            print(f"  right again after {self.counts.settle_s[-1]:.1f} s", flush=True)

    def before_kills(self) -> None:
        """With all jobs training: what must have come up in any case."""

    def after_kills(self) -> None:
        """Take away what would rightly keep things from settling."""

    def provoke(self, stage: str) -> str:
        """Make a resize happen, and come back when one is at this stage or past it, or when all is over."""
        before = self.rows("select coalesce(max(id), 0) from resizes")[0][0]
        self.toggle_rigid()
        seen = ""

        def reached() -> bool:
            nonlocal seen
            rows = self.rows(f"select state, open_job from resizes where id > {before} order by id desc limit 1")
            seen = rows[0][0] if rows else ""
            return bool(rows) and (rows[0][1] is None or STAGES.index(seen) >= STAGES.index(stage))

        with contextlib.suppress(AssertionError):  # nothing may have had to be resized
            wait_until(reached, 20, every=0.01)
        time.sleep(self.chance.random() * 0.2)  # somewhere within the stage
        return seen or "rest"

    def end(self) -> None:
        """All jobs run to their ends, and nothing of them is left in Slurm."""
        for job in self.jobs:
            (job.folder / "go").touch()

        def over() -> bool:
            self.reap()
            self.remind()
            return not self.jobs

        wait_until(over, SETTLE_S, self.story, every=0.2)
        wait_until(lambda: not self.daemon.companions(), 60, self.story)


def _pieces(value: Any) -> list[dict[str, Any]]:
    return list(json.loads(value)) if value else []


def _tail(path: Path) -> str:
    return path.read_text()[-5000:] if path.exists() else ""
