"""What is tried, in order: each check does one thing that slurm-elastic does, with the trial's own jobs.

Limit: one partition, one or two nodes; from node to node it is tried in the direction in which joiners connect.
"""

import json
import re
import select
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from slurm_elastic.protocol.errors import SlurmError
from slurm_elastic.protocol.messages import MOST_SAID, NOT_TRIED, REFUSED, WORKS, Tried

from ..actions import refusals
from ..slurm import CommandClient
from . import on_nodes
from .trial import ANSWER_S, ENDED, WAIT_S, NotTried, Refused, Trial, refusal

CREDENTIAL_S = 1.2
"""A job that is released in the second in which it was requeued fails at its start."""
Seen = tuple[str, float | None]
"""What a check has seen, and the seconds that say something."""


@dataclass(slots=True)
class Bench:
    """What checks leave to those that follow."""

    trial: Trial
    client: CommandClient
    daemon: str = ""
    """The user whom selasticd runs as; empty: none is known here."""
    base: int = 0
    """A batch job that runs; 0: none does."""
    nodes: tuple[str, ...] = ()
    """The base's, its batch host first."""
    account: str = ""
    companions: dict[int, str] = field(default_factory=dict)
    """Those that run, each with its node."""

    def running(self, nodes: int = 1) -> tuple[int, str]:
        """The base, and its batch host. Raises NotTried when there is none, or it has fewer nodes."""
        if not self.base:
            raise NotTried("it needs the batch job")
        if len(self.nodes) < nodes:
            raise NotTried("only one node was free")
        return self.base, self.nodes[0]

    def starts(self, base: int) -> float:
        """The base runs; after how many seconds from now. Raises NotTried when it does not."""
        began, state = time.monotonic(), self.trial.wait(base, "RUNNING")
        self.nodes = (state.batch_host, *(name for name in state.nodes if name != state.batch_host))
        self.trial.on(base, state.batch_host, "true")
        self.base = base
        return time.monotonic() - began

    def free(self) -> list[str]:
        """Nodes on which a job of the trial would start now. Raises NotTried when there is none."""
        partition, gpus = self.trial.partition, self.trial.gpus
        known = self.client.snapshot().nodes.values()
        nodes = [node for node in known if partition in node.partitions]
        if not nodes:
            there = ", ".join(sorted({name for node in known for name in node.partitions}))
            raise NotTried(f"no node is in a partition {partition}; accepted: {there or 'none, Slurm shows no nodes'}")
        found = [node.name for node in nodes if node.schedulable and node.gpus - node.gpus_used >= gpus]
        if not found:
            raise NotTried(f"no node of partition {partition} has {self.trial.gres} free now")
        return found


def tried(bench: Bench) -> Iterator[tuple[str, Tried]]:
    """What each check is about, and its outcome, as they come."""
    for name, what, run in CHECKS:
        seconds = None
        try:
            bench.trial.left_s  # noqa: B018 - raises when the minutes are over
            said, seconds = run(bench)
            outcome = WORKS
        except Refused as error:
            outcome, said = REFUSED, str(error)
        except (NotTried, SlurmError) as error:
            outcome, said = NOT_TRIED, str(error)
        except (ValueError, LookupError, OSError) as error:
            outcome, said = NOT_TRIED, f"no answer of a known form: {error}"
        yield what, Tried(name, outcome, said[:MOST_SAID], None if seconds is None else round(seconds, 2))


def _base(bench: Bench) -> Seen:
    trial, nodes = bench.trial, min(2, len(bench.free()))
    script, words = on_nodes.BATCH.replace("FILE", f"/tmp/{trial.name}"), trial.one_more(nodes)
    base = trial.sbatch(script, "--requeue", *words)
    took = bench.starts(base)
    bench.account = trial.slurm("squeue", "-h", "-j", str(base), "-o", "%a").strip()
    return f"job {base} on {', '.join(bench.nodes)}", took


def _network(bench: Bench) -> Seen:
    base, first = bench.running(nodes=2)
    trial, other = bench.trial, bench.nodes[1]
    listening = trial.step(base, first, *on_nodes.python(on_nodes.LISTEN))
    try:
        place = json.loads(_line(trial, listening))
        said = trial.on(base, other, *on_nodes.python(on_nodes.CONNECT, json.dumps([first, place])))
        names, reached, failed = json.loads(said.splitlines()[-1])
    finally:
        trial.end(listening)
    not_at = [f"not at {address} ({why})" for address, why in failed.items()]
    if not reached:
        raise Refused(f"{other} does not reach {first}: {'; '.join(not_at) or 'it has no address but the loopback'}")
    known = [f"there {name} is {', '.join(at) or 'not known'}" for name, at in names.items()]
    return "; ".join([f"{other} reaches {first} at {', '.join(reached)}", *not_at, *known]), None


def _signals(bench: Bench) -> Seen:
    base, host = bench.running()
    trial, file = bench.trial, f"/tmp/{bench.trial.name}"
    waiting = trial.step(base, host, "sh", "-c", on_nodes.BEARS)
    try:
        _line(trial, waiting)
        found = []
        for whom, words in (("the batch script", ["--batch"]), ("the steps", [])):
            trial.slurm("scancel", *words, "--signal=USR1", str(base))
            reached: list[str] = []
            for _ in range(20):
                heard = {"the batch script": bool(trial.on(base, host, "cat", file)), "the steps": _heard(waiting)}
                reached = [who for who, has in heard.items() if has]
                if whom in reached:
                    break
            found.append(f"USR1 to {whom} reaches {' and '.join(reached) or 'nobody'}")
            if whom not in reached:
                raise Refused("; ".join(found))
            trial.on(base, host, "sh", "-c", f": >{file}")
        return "; ".join(found), None
    finally:
        trial.end(waiting)


def _companion(bench: Bench, by: str) -> Seen:
    """From within the base, as its supervisor asks; with a node named, and where that is refused without."""
    base, host = bench.running()
    trial, refused = bench.trial, ""
    node = min(bench.free(), key=lambda name: (name in bench.companions.values(), name != host))
    for named in ([f"--nodelist={node}"], []):
        words = [*trial.one_more(1), "--no-kill", "--nice=1000", *named]
        ask = ["salloc", "--no-shell", *words]
        if by == refusals.SBATCH:
            ask = ["sbatch", "--parsable", "--no-requeue", "--output=/dev/null", "--chdir=/", *words]
            ask.append("--wrap=exec sleep infinity")
        *said, last = trial.on(base, host, "sh", "-c", on_nodes.ASK, shlex.join(ask), within_s=WAIT_S).splitlines()
        code, milliseconds = map(int, last.split())
        began, number = time.monotonic(), re.search(r"allocation (\d+)|^(\d+)", "\n".join(said), re.MULTILINE)
        if code == 0 and number is not None:
            job = int(number[1] or number[2])
            bench.companions[job] = trial.wait(job, "RUNNING").nodes[0]
            how = f"only where Slurm chooses the node ({refused})" if refused else f"on {node}, which was named"
            return how, milliseconds / 1000 + (time.monotonic() - began if by == refusals.SBATCH else 0)
        why = refusal("\n".join(said))
        if not isinstance(why, Refused) or refused:
            raise why
        refused = str(why)
    raise AssertionError("unreachable")


def _gpus(bench: Bench) -> Seen:
    base, host = bench.running()
    beside = next((job for job, node in bench.companions.items() if node == host), 0)
    if not beside:
        raise NotTried("no companion runs on a node of the batch job")
    gres = f"gpu:{bench.trial.gpus}"
    said = (bench.trial.on(job, host, "sh", "-c", on_nodes.GPUS, gres=gres) for job in (base, beside))
    own, others = (list(dict.fromkeys(each.split())) for each in said)
    told = f"the batch job sees {', '.join(own) or 'none'}, the companion beside it {', '.join(others) or 'none'}"
    if set(own) & set(others) and not own[0].startswith("GPU-"):  # each job may count its own from 0
        raise NotTried(f"{told}: which these are cannot be told without nvidia-smi")
    if not own or not others or set(own) & set(others):
        raise Refused(told)
    return told, None


def _epilog(bench: Bench) -> Seen:
    if not bench.companions:
        raise NotTried("no companion was granted")
    trial, began = bench.trial, time.monotonic()
    trial.slurm("scancel", *map(str, bench.companions))
    for job in bench.companions:
        trial.wait(job, *ENDED, within_s=trial.left_s)
    took = time.monotonic() - began
    bench.companions.clear()
    return f"from scancel to free nodes; Epilog is {bench.client.epilog() or 'not set'}", took


def _shrink(bench: Bench) -> Seen:
    base, host = bench.running(nodes=2)
    bench.trial.slurm("scontrol", "update", f"JobId={base}", f"NodeList={host}")
    until = time.monotonic() + ANSWER_S
    while (state := bench.trial.state(base)).nodes != (host,):
        if time.monotonic() > until:
            raise NotTried(f"Slurm took it, and job {base} still has {', '.join(state.nodes) or 'nothing'}")
        time.sleep(0.2)
    gone = bench.nodes[1]
    bench.starts(base)
    return f"{gone} was taken from job {base}, which runs on", None


def _requeue(bench: Bench) -> Seen:
    base, _ = bench.running()
    trial, began = bench.trial, time.monotonic()
    trial.slurm("scontrol", "requeuehold", str(base))
    bench.base = 0
    trial.wait(base, "PENDING")
    stopped = time.monotonic() - began
    time.sleep(CREDENTIAL_S)
    trial.slurm("scontrol", "update", f"JobId={base}", "StartTime=now")
    trial.slurm("scontrol", "release", str(base))
    bench.starts(base)
    return f"in the queue after {stopped:.1f} s, then running again", time.monotonic() - began


def _component(bench: Bench) -> Seen:
    trial = bench.trial
    if bench.base:
        trial.slurm("scancel", str(bench.base))
        trial.wait(bench.base, *ENDED)
        bench.base = 0
    bench.free()
    words, began = trial.one_more(1), time.monotonic()
    leader = trial.sbatch("#!/bin/sh\nexec sleep infinity\n", *words, ":", *words)
    trial.wait(leader, "RUNNING")
    took = time.monotonic() - began
    trial.slurm("scancel", f"{leader}+1")
    trial.wait(leader + 1, *ENDED)
    if trial.state(leader).state != "RUNNING":
        raise Refused(f"job {leader} ended with its component")
    return f"job {leader} runs on without {leader}+1", took


def _rights(bench: Bench) -> Seen:
    if not bench.daemon:
        raise NotTried("no selasticd is known here")
    accounts = bench.client.may_change(bench.daemon)
    if accounts is None or bench.account in accounts or bench.daemon == bench.trial.user:
        return f"{bench.daemon}, whom selasticd runs as, may change {'all' if accounts is None else 'these'} jobs", None
    raise Refused(f"{bench.daemon}, whom selasticd runs as, may not change jobs of account {bench.account or '(none)'}")


def _line(trial: Trial, process: subprocess.Popen[str]) -> str:
    """The first line of a step. Raises Refused or NotTried when none comes."""
    if process.stdout is not None and _heard(process, ANSWER_S) and (line := process.stdout.readline()):
        return line
    trial.said(process, 1.0)
    raise NotTried("a step was started, and said nothing")


def _heard(process: subprocess.Popen[str], within_s: float = 0) -> bool:
    """Whether the step prints anything more."""
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], within_s)[0])


CHECKS: tuple[tuple[str, str, Callable[[Bench], Seen]], ...] = (
    ("base", "a batch job, and a step in it", _base),
    ("network", "nodes reach each other", _network),
    ("signals", "signals reach the batch script, and the steps", _signals),
    (refusals.SALLOC, "a companion by salloc, asked for on a node", partial(_companion, by=refusals.SALLOC)),
    (refusals.SBATCH, "a companion by sbatch, asked for on a node", partial(_companion, by=refusals.SBATCH)),
    ("gpus", "two jobs on one node see GPUs of their own", _gpus),
    (refusals.EPILOG, "nodes are free after a job", _epilog),
    (refusals.SHRINK, "a node is taken from a running job", _shrink),
    (refusals.REQUEUE, "a running job is put back, and starts again", _requeue),
    (refusals.COMPONENT, "a component of a running job is given up", _component),
    ("rights", "selasticd may change these jobs", _rights),
)
"""Each raises Refused, NotTried or SlurmError, or gives what it has seen."""
