"""Elastic jobs that train on a real Slurm under a real selasticd, as the ground of a campaign: resizes are provoked by
ordinary jobs that come and go, and in the middle of them something is killed, cut off or taken away.

The same on one host and on several. Limits: GPUs are fake; on one host a node that dies takes its processes and its
slurmd, not its memory or disks; on several it takes all that the host has, but what is shared stays reachable.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import time
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import audited
import kill_targets
from campaign import SOAK, Ground, Heal
from live_daemon import Selasticd
from local_run import kill
from sandbox_of_hosts.links import CUT, Link, Links
from sandbox_of_hosts.names import HEAD, address
from training import TRAIN
from training_job import TrainingJob
from waiting import wait_until

from slurm_elastic.protocol.errors import SlurmUnreachable

SETTLE_S = 240.0
"""Longest that anything may take to be right again, on a machine as busy as it may be."""
JOBS = 2
SAMPLES = 9000
REQUEST = "elastic:gpus=1-4,batch=16-64"
STARTED_TWICE = "launch failed requeued held"
STAGES = ("issued", "accepted", "submitted", "granted", "ready", "running")
EVERYWHERE = ("selasticd", "supervisor", "worker", "agent", "slurmctld", "slurmdbd", "node", "base")
LASTING = ("flap", "maintenance")
"""With these: what takes minutes to come right, for Slurm makes a job wait whose node failed. In soaks only."""
MAINTENANCE = ("starttime=now", "duration=60", "users=root", "flags=maint,ignore_jobs")
NETWORK = ("cut", "partition", "one-way", "delay")
"""What happens to packets, and not to processes."""
PACED = TRAIN.replace(" * (1 if job.samples < samples * epochs / 2 else 20)", " * len(x)")
"""It naps for each sample, until its end is wanted."""
SCRIPT = """
for attempt in $(seq 40); do
    {run} && exit 0
    echo "selastic run ended with $?; attempt $attempt"
    sleep 0.2
done
exit 1
"""


class Trained(TrainingJob):
    """One elastic job of the campaign."""

    address = ""
    """Its own way to the daemon, which can be cut."""
    silent = 0
    """Looks in a row at which it had no process."""


class ElasticJobs(Ground):
    """All nodes on one host: packets can be kept from selasticd only, by a route that leads nowhere."""

    healed_first = (*NETWORK, "slurmdbd", "slurmctld", "maintenance")
    """Nothing comes back to where no packet arrives, nor is a node ready that is in maintenance. A slurmctld that died
    young has no other source of its TRES, and a node needs one to come back to."""
    healed_last = "base"
    stays_s: tuple[float, ...] = (0.0, 0.0, 0.3, 1.5)
    filled = 5
    """Nodes taken by a job that stays; the campaign happens on the others."""
    listen = "0.0.0.0"
    """Where its selasticd listens."""
    options = ""
    """Further ones of the elastic jobs."""

    def __init__(self, selasticd: Selasticd, seed: int) -> None:
        super().__init__(seed)
        self.daemon, self.sandbox = selasticd, selasticd.sandbox
        self.kinds = EVERYWHERE + self.network_kinds() + (LASTING if SOAK else ())
        self.gpus = self.sandbox.spec.gpus_per_node
        self.free = tuple(f"n{number}" for number in range(self.filled + 1, self.sandbox.spec.nodes + 1))
        """The nodes that the campaign happens on."""
        self.jobs: list[Trained] = []
        self.number = self.ended = self.restarts = self.worlds = 0
        self.forgotten = 0
        """Times that Slurm had to be reminded of a job's end or start that it had known before its slurmctld died."""
        self.settle_s: list[float] = []
        self.rounds_after: list[int] = []
        self.rigid: list[int] = []
        self.filler = ""
        self.reminded = 0.0

    def told(self) -> str:
        settle = sorted(self.settle_s) or [0.0]
        return (
            f"{super().told()}; {self.ended} jobs trained to the end in {self.worlds} worlds with {self.restarts} "
            f"restarts; right again after {settle[len(settle) // 2]:.1f} s (median), {settle[-1]:.1f} s (worst), at "
            f"most {max(self.rounds_after, default=0)} rounds after the last resize; slurmctld was reminded of "
            f"{self.forgotten} ends and starts"
        )

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def fill(self, nodes: int = 0, partition: str = "main") -> None:
        """nodes: 0 for as many as the ground says."""
        size = [f"-N{nodes or self.filled}", f"--gres=gpu:a100:{self.gpus}"]
        command = ["salloc", "--no-shell", *size, f"--partition={partition}", "--time=600"]
        answer = self.sandbox.run([*command, "-Jfiller"])
        assert answer.returncode == 0, answer.stderr
        self.filler = answer.stderr.rpartition("job allocation ")[2].split()[0]

    def submit(self) -> None:
        """An elastic job that starts with a GPU on one node, or as `options` say."""
        self.number += 1
        way = self.way(self.number)
        env = {
            "SELASTIC_URL": f"http://{way}:{self.daemon.port}",
            "SELASTIC_ORPHAN_S": "2",
            "SLURM_CONF": self.sandbox.env["SLURM_CONF"],
        }
        options = f"--requeue -N1 --gres=gpu:a100:1 --time=60 --mem=1G -Jtrain{self.number} {self.options}"
        job = Trained(
            self.sandbox,
            self.daemon.folder / f"train{self.number}",
            f"{options} --comment={REQUEST}",
            SAMPLES,
            nap=0.012,
            words="--checkpoint-every 1",
            env=env,
            script=SCRIPT,
            train=PACED,
        )
        job.address = way
        self.jobs.append(job)

    def replenish(self) -> None:
        """In place of those that have ended."""
        while len(self.jobs) < JOBS:
            self.submit()

    def toggle_rigid(self) -> None:
        """An ordinary job comes, or goes: something has to be resized."""
        if self.rigid:
            # By name too: a slurmctld that has forgotten it gives its number to another job.
            self.sandbox.run(["scancel", "--name=rigid", str(self.rigid.pop())])
            return
        command = ["sbatch", "--parsable", "--output=/dev/null", "-Jrigid", "--time=60"]
        command.append(f"--gres=gpu:a100:{self.gpus}")
        answer = self.sandbox.run([*command, *self.rigid_options(), "--wrap", "sleep 3000"])
        assert answer.returncode == 0, answer.stderr
        self.rigid.append(int(answer.stdout))

    def rigid_options(self) -> tuple[str, ...]:
        """What the next ordinary job asks for."""
        return ("-N1",)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        path = self.daemon.state / "selastic.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
            return connection.execute(query).fetchall()

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
        opened = dict(self.rows("select open_job, state from resizes where open_job is not null"))
        live = {job.id for job in self.jobs}
        for job in self.jobs:
            held = queue.get(job.id)
            if held is None or not held.running:
                wrong.append(f"job {job.id} is {held.state + ' ' + held.reason if held else 'gone'}")
                continue
            gpus = self.daemon.held(job.id)
            pieces = json.loads(used.get(job.id) or "[]")
            trains = sum(len(piece["nodes"]) * piece["gpus_per_node"] for piece in pieces)
            if job.id in opened:
                wrong.append(f"job {job.id} is at {opened[job.id]}")
            if not gpus == trains == plan.get(job.id):
                wrong.append(f"job {job.id} holds {gpus}, trains on {trains}, planned {plan.get(job.id)}")
        for one in queue.values():
            if one.name.startswith("selastic-") and int(one.name.removeprefix("selastic-")) not in live:
                wrong.append(f"companion {one.job_id} of {one.name} is left")
            if "Held" in one.reason:
                wrong.append(f"job {one.job_id} is held: {one.reason}")
        return wrong

    def settle(self) -> bool:
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
        self.settle_s.append(time.monotonic() - begun)
        self.rounds_after.append(max(0, self.daemon_rounds() - moved) if moved else 0)
        print(f"  right again after {self.settle_s[-1]:.1f} s", flush=True)
        return True

    def daemon_rounds(self) -> int:
        try:
            return int((self.daemon.client().get("/v1/health", token="none") or {}).get("rounds", 0))
        except Exception:
            return 0

    def reap(self) -> None:
        """Jobs that have ended must have ended well, with every sample seen once."""
        queue = None
        with contextlib.suppress(SlurmUnreachable):  # of a slurmctld that closes connections its commands die: SIGPIPE
            queue = self.daemon.slurm.snapshot().jobs if self.slurm_answers() else None
        for job in [job for job in self.jobs if queue is not None and job.id not in queue]:
            state = job.state()
            if state in ("COMPLETING", ""):
                continue
            assert state == "COMPLETED" or ended_after_its_grace(job, state), (
                f"job {job.id} ended as {state}\n{self.story()}"
            )
            result = audited.check(job.folder / "audit", SAMPLES, 1)
            assert result.ok, f"job {job.id}: {result}\n{self.story()}"
            self.jobs.remove(job)
            self.ended += 1
            self.worlds += result.worlds
            self.restarts += result.restarts

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
            held = queue.get(job.id)
            if str(job.id) in alive:
                job.silent = 0
            elif held is not None and held.running:
                job.silent += 1
            if held is not None and held.running and job.silent > 1:  # it is not just starting
                self.forgotten += 1
                self.sandbox.run(["scontrol", "reconfigure"])
            elif str(job.id) not in alive and held is not None and held.reason == STARTED_TWICE:
                self.forgotten += 1
                for node, flags in self.daemon.slurm.snapshot().nodes.items():
                    if "DRAIN" in flags.flags:
                        self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
                self.sandbox.run(["scontrol", "release", str(job.id)])

    def slurm_answers(self) -> bool:
        return "UP" in self.sandbox.run(["scontrol", "ping"]).stdout

    def story(self) -> str:
        log = self.sandbox.dir / "log" / "slurmctld.log"
        live = [
            f"{one.pid} {one.parent} job {one.job} {one.command[:60]!r}" for one in kill_targets.processes(self.sandbox)
        ]
        outs = [f"--- {job.id}\n{job.text()[-5000:]}" for job in self.jobs]
        return "\n".join([self.told(), self.daemon.log(), *outs, log.read_text()[-5000:], *live])

    # --- the campaign -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.fill()
        self.replenish()
        self.settle()
        self.before_faults()
        self.settle_s.clear()
        self.rounds_after.clear()

    def before_faults(self) -> None:
        """With all jobs training: what must have come up in any case."""

    def choose(self, kinds: tuple[str, ...], most: int) -> list[str]:
        self.replenish()
        chosen = self.draw(kinds, most)
        # Without it the others' victims cannot be found; and it must have heard of all bases before it dies.
        return sorted(chosen, key=lambda kind: (kind == "slurmctld", "slurmctld" in chosen and kind in NETWORK))

    def draw(self, kinds: tuple[str, ...], most: int) -> list[str]:
        return super().choose(kinds, most)

    def provoke(self) -> str:
        """Make a resize happen, and come back when one is at a stage that is drawn or past it, or when all is over."""
        stage = self.chance.choice(STAGES)
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
            job.go()

        def over() -> bool:
            self.reap()
            self.remind()
            return not self.jobs

        wait_until(over, SETTLE_S, self.story, every=0.2)
        wait_until(lambda: not self.daemon.companions(), 60, self.story)

    # --- what goes wrong with processes -------------------------------------------------------------------------------

    def victim(self) -> Trained | None:
        return self.chance.choice(self.jobs) if self.jobs else None

    def selasticd(self) -> Heal:
        self.daemon.kill()
        self.happened["selasticd"] += 1
        return self.daemon.start

    def supervisor(self) -> None:
        if job := self.victim():
            pids = kill_targets.supervisors(self.sandbox, job.id)
            self.happened["supervisor"] += kill(*pids)

    def worker(self) -> None:
        self._kill_one("worker", kill_targets.workers)

    def agent(self) -> None:
        self._kill_one("agent", kill_targets.agents)

    def _kill_one(self, name: str, find: Callable[..., list[int]]) -> None:
        job = self.victim()
        if job is None or not self.slurm_answers():
            return
        pieces = [job.id, *(c.job_id for c in self.daemon.companions() if c.name == f"selastic-{job.id}")]
        pids = sorted(pid for piece in pieces for pid in find(self.sandbox, piece))
        if pids:
            self.happened[name] += kill(self.chance.choice(pids))

    def slurmctld(self) -> Heal:
        """Not before it has saved the start of every base. One whose start it has forgotten it launches a second time
        and may fail ("Job credential revoked"), with or without selasticd: there is nothing left to come right."""
        wait_until(self.starts_are_saved, SETTLE_S, self.story, every=0.5)
        begin = self._kill_daemon("slurmctld")

        def heal() -> None:
            begin()
            wait_until(self._unmarked, SETTLE_S, self.story, every=3.0)

        return heal

    def _unmarked(self) -> bool:
        """Whether no node is in maintenance but by a reservation: slurmctld was seen to begin with the mark of one that
        had been deleted, and to keep it. Another one that begins there and is deleted, seconds later, takes it off."""
        kept = self.sandbox.run(["scontrol", "-o", "show", "reservation"]).stdout
        if "ReservationName=unmark " in kept:
            self.sandbox.run(["scontrol", "delete", "reservationname=unmark"])
            return False
        listed = [line.split() for line in self.sandbox.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout.splitlines()]
        marked = [node for node, state in listed if "maint" in state and f"Nodes={node} " not in kept]
        if marked:
            words = [f"nodes={','.join(marked)}", "reservation=unmark", *MAINTENANCE]
            self.sandbox.run(["scontrol", "create", *words])
        return not marked

    def starts_are_saved(self) -> bool:
        if not self.slurm_answers():
            return True
        # It saves only after a change, so there is to be one.
        self.sandbox.run(["scontrol", "update", f"jobid={self.filler}", f"comment=campaign {time.monotonic()}"])
        queue, file = self.daemon.jobs(), self.sandbox.dir / "state" / "job_state"
        bases = [queue[job.id] for job in self.jobs if job.id in queue]
        if any(not base.running and base.state != "PENDING" for base in bases):
            return False
        starts = [base.start_time or base.submit_time for base in bases]
        return file.exists() and file.stat().st_mtime > max(starts, default=0.0) + 1

    def slurmdbd(self) -> Heal:
        return self._kill_daemon("slurmdbd")

    def _kill_daemon(self, name: str) -> Heal:
        self.happened[name] += kill_targets.kill_daemon(self.sandbox, name)
        return lambda: self.sandbox.start_daemon(name)

    # --- with nodes ---------------------------------------------------------------------------------------------------

    def free_node(self) -> str:
        """A living node that no base runs on; "" where there is none, or Slurm does not answer."""
        if not self.slurm_answers():
            return ""
        queue = self.daemon.jobs()
        bases = {node for job in self.jobs if job.id in queue for node in queue[job.id].nodes}
        free = [node for node in self.free if node not in bases and self.alive(node)]
        return self.chance.choice(free) if free else ""

    def node(self) -> Heal | None:
        """A node that no base runs on: a base's death is a requeue, which `base` is about."""
        node = self.free_node()
        if not node:
            return None
        self.kill_node(node)
        self.happened["node"] += 1
        return lambda: self.heal_node(node)

    def base(self) -> Heal | None:
        """The node of a base dies: Slurm requeues the job, which goes on from its checkpoint on another node, long
        before this one is back: what Slurm sent to end the job's processes there must not find it again."""
        job = self.victim()
        held = self.daemon.jobs().get(job.id) if job and self.slurm_answers() else None
        if job is None or held is None or not held.running or not self.alive(held.nodes[0]):
            return None
        node = held.nodes[0]
        self.kill_node(node)
        self.happened["base node"] += 1

        def elsewhere() -> bool:
            self.remind()
            now = self.daemon.jobs().get(job.id) if self.slurm_answers() else None
            return job.state() == "COMPLETED" or (now is not None and now.running)

        def heal() -> None:
            wait_until(elsewhere, SETTLE_S, self.story, every=0.2)
            self.heal_node(node)

        return heal

    def flap(self) -> Heal | None:
        """The node of a base dies, and is back as soon as packets reach it, wherever the job is by then."""
        if not self.slurm_answers():
            return None
        # A job that was submitted a moment ago, or that lost its node in the round before, has none yet; and all may
        # have ended since the round began.
        node = wait_until(self._node_of_a_base, SETTLE_S, self.story, every=0.2)
        self.kill_node(node)
        self.happened["flapping node"] += 1
        return lambda: self.heal_node(node)

    def _node_of_a_base(self) -> str:
        """Of one that runs; empty: none does."""
        self.reap()
        self.replenish()
        self.remind()
        queue = self.daemon.jobs()
        bases = [queue[job.id] for job in self.jobs if job.id in queue]
        nodes = [base.nodes[0] for base in bases if base.running and self.alive(base.nodes[0])]
        return self.chance.choice(nodes) if nodes else ""

    def maintenance(self) -> Heal | None:
        """A node is reserved for maintenance from now on, over whatever runs there."""
        if not self.slurm_answers():
            return None
        words = [f"nodes={self.chance.choice(self.free)}", "reservation=campaign", *MAINTENANCE]
        self.happened["maintenance"] += self.sandbox.run(["scontrol", "create", *words]).returncode == 0
        return lambda: self.sandbox.run(["scontrol", "delete", "reservationname=campaign"])

    def alive(self, node: str) -> bool:
        return bool(self.sandbox.daemons.pid(f"slurmd-{node}"))

    def kill_node(self, node: str) -> None:
        """A node dies: its slurmd, its steps' managers and all that runs in them, at once. Slurm hears of it as a
        health check would tell it, for slurmctld itself waits SlurmdTimeout (minutes) before it calls a silent node
        down."""
        self.power_off(node)
        self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=campaign"])

    def heal_node(self, node: str) -> None:
        """The node boots again."""
        # Not before its slurmctld has ended what ran there: a node that comes back resumed would keep its lost jobs.
        self.power_on(node)
        self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        self.sandbox.start_daemon(f"slurmd-{node}")

    def power_off(self, node: str) -> None:
        kill_targets.end_node(self.sandbox, node)

    def power_on(self, node: str) -> None:
        self.sandbox.daemons.start(f"slurmd-{node}")

    # --- and with packets ---------------------------------------------------------------------------------------------

    def network_kinds(self) -> tuple[str, ...]:
        if _route("add", "127.77.255.254"):
            _route("del", "127.77.255.254")
            return ("cut",)
        print("routes cannot be changed here: the network is not cut", flush=True)
        return ()

    def way(self, job: int) -> str:
        """The address at which this job finds selasticd."""
        return f"127.77.{self.chance.randrange(1, 250)}.{job % 250 + 1}"

    def cut(self) -> Heal | None:
        """No packet reaches a job's address of selasticd any more: new connections fail, those that are open hear
        nothing. Healed, packets flow again; what waits to be sent again is sent again."""
        job = self.victim()
        if job is None or not _route("add", job.address):
            return None
        self.happened["cut"] += 1
        return lambda: _route("del", job.address)


class ElasticJobsOnHosts(ElasticJobs):
    """Every node on a host of its own: any two may be cut off from each other, both ways or one, or be far apart."""

    filled = 1
    listen = address(HEAD)
    stays_s = (0.3, 1.5, 6.0, 15.0, 45.0)
    drawn = 0

    def network_kinds(self) -> tuple[str, ...]:
        return ("partition", "one-way", "delay")

    def draw(self, kinds: tuple[str, ...], most: int) -> list[str]:
        """In each round something happens to packets, each kind of it in turn."""
        network, others = [[kind for kind in kinds if (kind in NETWORK) == wanted] for wanted in (True, False)]
        self.drawn += 1
        chosen = [network[self.drawn % len(network)]] if network else []
        return chosen + super().draw(tuple(others), most - len(chosen))

    def way(self, job: int) -> str:
        return address(HEAD)

    def disturb(self, kind: str) -> Heal | None:
        """Packets get lost, or late, between a host and another one, or all others."""
        if self.victim() is None:
            return None
        everybody = [HEAD, *self.free]
        one = self.chance.choice(everybody)
        others = [host for host in everybody if host != one]
        others = self.chance.choice([others, [self.chance.choice(others)]])
        outwards = self.chance.random() < 0.5
        links = self.sandbox.links
        for other in others:
            if kind == "one-way":
                links = links.with_one_way(*((one, other) if outwards else (other, one)), CUT)
            else:
                links = links.with_both_ways(one, other, CUT if kind == "partition" else Link(0.2, 0.02))
        self.sandbox.links = links
        self.happened[kind] += 1
        print(f"  {kind}: {one} and {', '.join(others)}", flush=True)
        return lambda: setattr(self.sandbox, "links", Links())

    partition = partialmethod(disturb, "partition")
    one_way = partialmethod(disturb, "one-way")
    delay = partialmethod(disturb, "delay")

    def power_off(self, node: str) -> None:
        self.sandbox.daemons.stop(f"host-{node}")

    def power_on(self, node: str) -> None:
        self.sandbox.start_host(node)


def ended_after_its_grace(job: Trained, state: str) -> bool:
    """Slurm's TIMEOUT for a preempted job that ends well by itself after its grace, before it is put back: there are
    some seconds between, many where slurmctld was started anew meanwhile."""
    preempted = job.field("PreemptTime") not in ("", "None")
    return state == "TIMEOUT" and preempted and job.field("ExitCode") == "0:0"


def _route(verb: str, where: str) -> bool:
    command = ["ip", "route", verb, "blackhole", f"{where}/32", "table", "local"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
