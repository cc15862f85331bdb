"""What Slurm is asked when many elastic jobs change in one round: messages to slurmctld, by kind, as sdiag counts them.

    python benchmarks/bench_rpcs.py [--jobs 300]

A private real Slurm, as many batch jobs of one GPU each, and the real daemon at its shipped intervals. The supervisors
are played here: they register, and carry each resize out with the very commands of `selastic run` (scontrol, salloc),
eight at a time; nothing trains, so the step of srun on each companion is not in it. All jobs grow to two GPUs in one
round, by a companion each; then a limit of GPUs makes all of them give that up in one round.
Limit: this counts messages, not how long slurmctld takes for them, which depends on its number of jobs.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import _setup  # noqa: F401

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.selasticd.daemon import Daemon
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm import CommandClient
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.messages import Happening, Piece, Registration, Report, Resize
from slurm_elastic.trainer_shim.allocation import commands
from slurm_elastic.trainer_shim.allocation.slurm_job import SlurmJob, parse_job

GPUS_PER_NODE = 64
AT_A_TIME = 8
PATIENCE_S = 500.0
BATCH = 240
REQUEST = f"elastic:gpus=1-2,batch={BATCH}"
_COUNTED = re.compile(r"(?m)^\s+((?:REQUEST|MESSAGE|RESPONSE)_\w+)\s+\(\s*\d+\) count:(\d+)")
_GRANTED = re.compile(r"job allocation (\d+)")
OWN = "REQUEST_STATS_INFO"
"""What sdiag itself asks."""


@dataclass
class Phases:
    """What was counted, by what happened meanwhile."""

    cluster: Sandbox
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def counted(self, name: str, rounds: Callable[[], int]) -> Iterator[None]:
        before, done, began = self._now(), rounds(), time.monotonic()
        yield
        self.seconds[name], self.rounds[name] = time.monotonic() - began, rounds() - done
        found = self._now()
        found.subtract(before)
        found.pop(OWN, None)
        self.counts[name] = +found

    def _now(self) -> Counter[str]:
        return Counter({kind: int(count) for kind, count in _COUNTED.findall(asked(self.cluster, ["sdiag"]))})

    def table(self) -> str:
        """As Markdown, the most frequent first."""
        names = list(self.counts)
        kinds = sorted(set().union(*self.counts.values()), key=lambda k: -sum(c[k] for c in self.counts.values()))
        lines = [["", *names], ["---", *["---:"] * len(names)]]
        lines += [["rounds of selasticd", *(str(self.rounds[name]) for name in names)]]
        lines += [["seconds", *(f"{self.seconds[name]:.0f}" for name in names)]]
        lines += [["messages in all", *(str(self.counts[name].total()) for name in names)]]
        lines += [[f"`{kind}`", *(str(self.counts[name][kind]) for name in names)] for kind in kinds]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class PlayedSupervisor:
    """One job's supervisor, without a training."""

    def __init__(self, cluster: Sandbox, job_id: int) -> None:
        self.cluster, self.job_id, self.last, self.generation = cluster, job_id, 0, 0
        self.pieces: tuple[Piece, ...] = ()

    def register(self, daemon: Daemon) -> None:
        owner = daemon.controller.owner(self.job_id, 0)
        assert owner is not None
        if not self.pieces:
            job = daemon.jobs.latest().jobs[self.job_id]
            self.pieces = (Piece(self.job_id, "base", job.nodes, job.gpus_per_node, job.gpu_type),)
        grant = daemon.controller.registered(
            self.job_id, Registration(VERSION, self.generation, self.pieces, BATCH, "train.py")
        )
        assert grant.managed, grant.reason

    def report(self, daemon: Daemon) -> None:
        gpus, now = sum(piece.gpus for piece in self.pieces), time.time()
        step, nodes = 1.0 / gpus, len({node for piece in self.pieces for node in piece.nodes})
        daemon.store.reports.submit(
            self.job_id,
            [Report(self.generation, now, gpus, nodes, BATCH, BATCH // gpus, 1, 10, step, step, BATCH / step, 1, 1, 0)],
            now,
        ).result()

    def listen(self, daemon: Daemon) -> bool:
        """Carry out what there is to do; whether there was anything."""
        resize = daemon.controller.resize(self.job_id)
        if resize is None or resize.withdrawn or resize.id <= self.last:
            return False
        self.last = resize.id
        self._tell(daemon, resize, ResizeState.ACCEPTED)
        added = []
        for shape in resize.add:
            self._tell(daemon, resize, ResizeState.SUBMITTED)
            base = self._show(self.job_id)
            said = asked(self.cluster, commands.salloc(shape, base, resize.id, None), "stderr")
            found = _GRANTED.search(said)
            assert found is not None, said
            added.append(self._show(int(found[1])).piece("companion"))
            self._tell(daemon, resize, ResizeState.GRANTED)
        self._tell(daemon, resize, ResizeState.READY)
        self.pieces, self.generation = (*resize.keep, *added), self.generation + 1
        self._tell(daemon, resize, ResizeState.RUNNING)
        self.report(daemon)
        return True

    def _show(self, job_id: int) -> SlurmJob:
        return parse_job(asked(self.cluster, commands.show_job(job_id)), job_id, lambda names: (names,))

    def _tell(self, daemon: Daemon, resize: Resize, state: ResizeState) -> None:
        daemon.controller.happened(
            self.job_id, Happening(resize.id, state.value, self.generation, self.pieces, BATCH, time.time(), 0.1)
        )


def asked(cluster: Sandbox, command: list[str], what: str = "stdout") -> str:
    """What a command of Slurm's says; it has to succeed."""
    answer = cluster.run(command, timeout_s=120)
    assert answer.returncode == 0, f"{command}: {answer.stderr}"
    return str(getattr(answer, what))


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.2)


def run(cluster: Sandbox, folder: Path, count: int) -> Phases:
    words = ["sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:1", "--mem=64", f"--comment={REQUEST}"]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        submitted = pool.map(lambda _: asked(cluster, [*words, "--wrap=exec sleep infinity"]), range(count))
        supervisors = [PlayedSupervisor(cluster, int(job)) for job in submitted]
        running = ["squeue", "-h", "-t", "R", "-o", "%i"]
        until(lambda: len(asked(cluster, running).split()) == count, "all jobs run")
        found = Phases(cluster)
        settings = Settings(
            mode="observe",
            state_dir=str(folder),
            max_resizes_per_round=10_000,
            cooldown_grow_s=0.0,
            cooldown_shrink_s=0.0,
            learn_prior_at="",
        )

        def daemon(**more: object) -> Daemon:
            return Daemon(
                Settings(**{**vars(settings), **more}),
                CommandClient(str(cluster.layout.slurm_conf)),
                Store.open(settings.database_url),
            )

        def moves(name: str, each: int, **more: object) -> None:
            """A daemon with these settings moves every job to so many GPUs."""
            one = daemon(mode="act", **more)
            for supervisor in supervisors:
                supervisor.register(one)

            def moved() -> bool:
                busy = [*pool.map(lambda supervisor: supervisor.listen(one), supervisors)]
                sizes = {sum(piece.gpus for piece in use.pieces) for use in one.store.allocations.all_in_use().values()}
                return not any(busy) and sizes == {each} and not one.store.resizes.under_way()

            with found.counted(name, lambda: one.rounds.count):
                one.start()
                until(moved, f"every job has {each} GPUs")
                one.scheduler.stop()
            issued = {resize.created for resize in map(one.store.resizes.last_closed, (s.job_id for s in supervisors))}
            print(f"{name}: ordered within {max(issued) - min(issued):.1f} s")
            one.stop()

        first = daemon()
        with found.counted(f"{count} register", lambda: first.rounds.count):
            for _ in pool.map(lambda supervisor: supervisor.register(first), supervisors):
                pass
        for supervisor in supervisors:
            supervisor.report(first)
        first.rounds.run()
        with found.counted("a round without changes", lambda: first.rounds.count):
            first.rounds.run()
        first.stop()
        moves(f"{count} grow", 2)
        moves(f"{count} shrink", 1, gpu_limits=(f"user:*={count}",))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    count = parser.parse_args().jobs
    nodes = -(-2 * count // GPUS_PER_NODE) + 1
    spec = SandboxSpec(nodes=nodes, gpus_per_node=GPUS_PER_NODE, cpus_per_node=2 * GPUS_PER_NODE, with_accounting=False)
    with Sandbox.up(spec) as cluster, tempfile.TemporaryDirectory() as folder:
        print(run(cluster, Path(folder), count).table())


if __name__ == "__main__":
    main()
