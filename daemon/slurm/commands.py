"""Slurm through its own commands: squeue, sinfo, scontrol, scancel. Made for 22.05 and the same text on newer ones.

Promise: one squeue and one sinfo per snapshot, for the whole cluster; no shell, no word that a user wrote is read as an
option or a field; whatever is not clearly a success or a refusal raises SlurmUnreachable or SlurmUnparsable.
Limit: a failed `scontrol update` need not be atomic in Slurm: observe again after every error.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.errors import SlurmError, SlurmRefused, SlurmUnparsable, SlurmUnreachable
from slurm_elastic.protocol.text.times import slurms_time

from . import accounting, fair_share, parse, pending_resize, site
from .accounting import QosUser
from .fair_share import ShareTree
from .model import Size, SlurmClient, Snapshot
from .nodelist import expand, fold
from .parse import with_nodes
from .site import PartitionRules, Site

ASKED_OF_SLURMDBD_S = 5.0
"""For what slurmdbd answers, and nothing has to wait for."""
MAX_SAID = 600
"""Characters of what Slurm, or a plugin of the site, says when it refuses."""
P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NO_ANSWER = re.compile(
    r"unable to contact slurm controller|connect failure|socket timed out|zero bytes were transmitted"
    r"|authentication error|communications? (?:connection|shutdown|send|receive) failure|connection refused"
    # scontrol update says only this when slurmctld does not answer.
    r"|unexpected message received"
    r"|standby mode|not responding|insane message|temporarily|try again|unable to process configuration"
    r"|could not establish a configuration source|fatal",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_HAS_ENDED = re.compile(r"already (?:completing or completed|finished)|job has already finished", re.IGNORECASE)
_NAMES_AN_ARRAY = re.compile(r"not supported for job arrays", re.IGNORECASE)
_NOT_PERMITTED = re.compile(r"access/permission denied", re.IGNORECASE)
_NO_RESERVATION = re.compile(r"requested reservation is invalid|reservation .*not found", re.IGNORECASE)


def _in_one_time(method: Callable[Concatenate[CommandClient, P], T]) -> Callable[Concatenate[CommandClient, P], T]:
    """All commands of one call share the time that a call has."""

    @functools.wraps(method)
    def call(self: CommandClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        outer = getattr(self._of_thread, "until", None)
        self._of_thread.until = outer or time.monotonic() + self._timeout_s
        try:
            return method(self, *args, **kwargs)
        finally:
            self._of_thread.until = outer

    return call


class CommandClient(SlurmClient):
    """A SlurmClient on the commands of Slurm. Any number may be used at once, and one from any thread.

    slurm_conf: path of slurm.conf; "" leaves it to Slurm's own search. timeout_s: for one call, however many commands
    it takes; Slurm's own MessageTimeout (10 s by default) should be shorter. prefix: words before each command, such as
    ("sudo", "-n").
    """

    def __init__(
        self, slurm_conf: str = "", *, timeout_s: float = 30.0, prefix: Sequence[str] = (), path: str = DEFAULT_PATH
    ) -> None:
        self._timeout_s = timeout_s
        self._of_thread = threading.local()
        self._reader = parse.JobReader()
        self._prefix = tuple(prefix)
        self._operator = self._administrator = False
        # Nothing else of the caller's environment: SQUEUE_*, SLURM_JOB_ID and the like change what the commands do.
        self._environment = {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
        slurm_conf = slurm_conf or os.environ.get("SLURM_CONF", "")
        if slurm_conf:
            self._environment["SLURM_CONF"] = slurm_conf

    @_in_one_time
    def snapshot(self) -> Snapshot:
        at, fields = time.time(), self._job_fields
        jobs = self._reader.jobs(self._listing("squeue", ["-a"], fields), fields, at)
        found = self._listing("sinfo", ["-a", "-N"], parse.NODE_FIELDS)
        rows = [dict(zip(parse.NODE_FIELDS, row, strict=True)) for row in found]
        nodes = parse.nodes(rows)
        return Snapshot(at, with_nodes(jobs, nodes), nodes, parse.partitions(rows))

    @functools.cached_property
    def _job_fields(self) -> Sequence[str]:
        return parse.job_fields(self.release())

    @_in_one_time
    def site(self) -> Site:
        at, known = time.time(), accounting.Limits()
        config = self._shown("show", "config")
        enforced = accounting.enforced(config)
        if enforced & {"limits", "safe"}:
            known = accounting.limits(self._shown("show", "assoc_mgr", "flags=assoc,qos"), "safe" in enforced)
        kept = site.reservations(self._shown("-o", "show", "reservation"))
        switches: dict[str, str] = {}
        with contextlib.suppress(SlurmUnreachable):  # a site without switches says so with an error; slurmctld answers
            switches = site.switches(self._shown("show", "topology"))
        return Site(
            *(at, known.limits, known.parents, kept, switches),
            holds_those_below=self.release() >= site.ACCOUNTS_HOLD_THOSE_BELOW,
            needs_switch=bool(switches) and self.release() < site.STARTS_UNDER_NO_SWITCH,
            users_apart=site.users_apart(config),
            power_saving=site.saves_power(config),
            can_suspend=(can_suspend := site.can_suspend(config)),
            never_sleep=site.never_sleep(config),
            administers=can_suspend and self._changes_nodes(),
            bf_interval_s=site.bf_interval_s(config),
            counts_shares=site.counts_shares(config),
            partition_users=known.partition_users,
            run_minutes_lag_s=accounting.run_minutes_lag_s(config),
            checks_qos="qos" in enforced,
            orders_queue=(multifactor := accounting.multifactor(config)) and self._changes_all(),
            multifactor=multifactor,
        )

    def slurms_time(self) -> float:
        stats = self._printed("sdiag")
        found = slurms_time(stats)
        if found is None:
            raise SlurmUnparsable(f"sdiag does not say when: {stats[:100]!r}.")
        return found

    def partitions(self) -> tuple[dict[str, PartitionRules], dict[str, str]]:
        return site.partitions(self._shown("-a", "-o", "show", "partition"), members_of)

    def qos_over_partition(self) -> frozenset[str]:
        return accounting.qos_over_partition(self._asked_of_slurmdbd("qos", "format=name,flags"))

    def qos_users(self, qos: str) -> Mapping[QosUser, bool]:
        return accounting.qos_users(self._asked_of_slurmdbd("assoc", "format=account,user,partition,qos"), qos)

    def shares(self) -> ShareTree:
        return fair_share.tree(self._asked_briefly("sshare", "-a", "-n", "-P", "-o", fair_share.FIELDS))

    def excluded_nodes(self) -> dict[int, tuple[str, ...]]:
        rows = [line.partition("|") for line in self._printed("squeue", "-h", "-a", "-o", "%A|%x").split()]
        try:
            return {int(job_id): expand(nodes) for job_id, _, nodes in rows if nodes not in ("", "(null)")}
        except ValueError as error:
            raise SlurmUnparsable(f"squeue printed excluded nodes of no known form: {error}.") from None

    def _asked_of_slurmdbd(self, *words: str) -> str:
        return self._asked_briefly("sacctmgr", "-n", "-P", "show", *words)

    @_in_one_time
    def _asked_briefly(self, *command: str) -> str:
        self._of_thread.until = min(self._of_thread.until, time.monotonic() + ASKED_OF_SLURMDBD_S)
        return self._printed(*command)

    def end_states(self, job_ids: Sequence[int]) -> dict[int, str]:
        numbers = ",".join(str(pending_resize.job_number(job_id)) for job_id in job_ids)
        done = self._run(["squeue", "-h", "-a", "-t", "all", "-j", numbers, "-o", "%A|%T"])
        if _UNKNOWN_JOB.search(done.stderr):
            return {}
        if done.returncode != 0:
            raise _no_answer(done, "squeue")
        return parse.end_states(done.stdout)

    def last_runs(self, job_ids: Sequence[int]) -> dict[int, str]:
        numbers = ",".join(str(pending_resize.job_number(job_id)) for job_id in job_ids)
        # Not what an earlier Slurm's jobs of these numbers did.
        words = ["-n", "-X", "-P", "-D", "-S", "now-10minutes", "-j", numbers, "-o", "JobIDRaw,Submit,State"]
        return parse.last_runs(self._asked_briefly("sacct", *words))

    def ended_jobs(self, start: float, end: float) -> Sequence[accounting.EndedJob]:
        now = time.time()
        window = (f"now-{max(0, round(now - at))}seconds" for at in (start, end))
        words = ["-n", "-P", "-a", "-X", "-D", "-s", accounting.ENDED_STATES, "-o", accounting.ENDED_FIELDS]
        return accounting.ended_jobs(self._asked_briefly("sacct", *words, "-S", next(window), "-E", next(window)))

    def set_site_factor(self, job_id: int, factor: int) -> None:
        self._update(str(pending_resize.job_number(job_id)), f"SiteFactor={int(factor)}")

    def set_power(self, node: str, awake: bool) -> None:
        name = fold(pending_resize.node_names([node], "a node's power"))
        words = ["update", f"NodeName={name}", f"State={'POWER_UP' if awake else 'POWER_DOWN_ASAP'}"]
        self._scontrol(words, f"{'wake' if awake else 'put to sleep'} node {node}")

    def _shown(self, *words: str) -> str:
        return self._printed("scontrol", *words)

    def _printed(self, *command: str) -> str:
        done = self._run([*command])
        if done.returncode != 0:
            raise _no_answer(done, command[0])
        return done.stdout

    @_in_one_time
    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        kept = f"NodeList={fold(pending_resize.node_names(nodes, f'job {job_id}'))}"
        try:
            self._update(str(pending_resize.job_number(job_id)), kept)
        except SlurmRefused as error:
            # The last task of an array carries the array's own id, and that names them all.
            name = self._array_name(job_id) if _NAMES_AN_ARRAY.search(str(error)) else ""
            if not name:
                raise
            self._update(name, kept)

    @_in_one_time
    def cancel(self, job_id: int) -> None:
        if self._scancel(str(pending_resize.job_number(job_id)), job_id):
            return
        # 22.05 does not know a task of an array by its raw id, says so only with -v, and calls that a success.
        name = self._array_name(job_id)
        if name and not self._scancel(name, job_id):
            raise SlurmUnparsable(f"squeue knows job {job_id} as {name}, and scancel knows neither.")

    def requeue(self, job_id: int) -> None:
        self._scontrol(["requeue", str(pending_resize.job_number(job_id))], f"requeue job {job_id}")

    @_in_one_time
    def asked_size(self, job_id: int) -> Size:
        shown = self._scontrol(["-o", "show", "job", str(pending_resize.job_number(job_id))], f"show job {job_id}")
        return pending_resize.asked_size(pending_resize.record(shown, job_id))

    @_in_one_time
    def resize_waiting(self, job_id: int, size: Size, reservation: str = "") -> None:
        name = str(pending_resize.job_number(job_id))
        shown = self._scontrol(["-o", "show", "job", name], f"show job {job_id}")
        record = pending_resize.record(shown, job_id)
        words = pending_resize.size_words(record, size)
        try:
            self._update(name, f"ReservationName={pending_resize.plain_name(reservation)}")
        except SlurmRefused as error:
            if not _NO_RESERVATION.search(str(error)):
                raise
        try:
            self._update(name, *words, "StartTime=now")
        except SlurmRefused as error:
            kept = pending_resize.size_words(record, size, keep_tasks=True)
            if kept == words or not _NOT_PERMITTED.search(str(error)):
                raise
            self._update(name, *kept, "StartTime=now")  # the whole size again: a part of the first call took effect

    @_in_one_time
    def reserve(self, name: str, nodes: Sequence[str], user: str, minutes: int) -> None:
        self.unreserve(name)
        kept, owner = fold(pending_resize.node_names(nodes, f"reservation {name}")), pending_resize.plain_name(user)
        words = [
            *("create", "reservation", f"ReservationName={name}", "StartTime=now", f"Duration={int(minutes)}"),
            *(f"Nodes={kept}", f"Users={owner}", "Flags=IGNORE_JOBS,FLEX"),
        ]
        self._scontrol(words, f"make reservation {name}")

    @_in_one_time
    def unreserve(self, name: str, job_id: int = 0) -> None:
        if job_id:
            with contextlib.suppress(SlurmRefused):  # it has ended, and so left the reservation
                self._update(str(pending_resize.job_number(job_id)), "ReservationName=")
        try:
            self._scontrol(["delete", f"reservation={pending_resize.plain_name(name)}"], f"end reservation {name}")
        except SlurmRefused as error:
            if not _NO_RESERVATION.search(str(error)):
                raise

    def default_partition(self) -> str:
        """Where jobs go that name none; empty: nowhere."""
        return next((name[:-1] for name in self._printed("sinfo", "-h", "-o", "%P").split() if name.endswith("*")), "")

    def node_addresses(self) -> tuple[str, ...]:
        """Where slurmctld reaches each node: a name or an address."""
        return tuple(dict.fromkeys(self._printed("sinfo", "-h", "-a", "-N", "-o", "%o").split()))

    def operators(self, *levels: str) -> frozenset[str]:
        """Names of the users who are Operator or Administrator in Slurm, or of these levels; none without slurmdbd."""
        users = self._users("format=User,AdminLevel")
        return frozenset(name for name, _, level in users if level.lower().startswith(levels or ("operator", "admin")))

    def coordinated(self, user: str) -> frozenset[str]:
        """The accounts whose jobs this user may change as their coordinator; none without slurmdbd."""
        users = self._users(pending_resize.plain_name(user), "withcoord", "format=User,Coordinators")
        return frozenset(
            account for name, _, accounts in users if name == user for account in accounts.split(",") if account
        )

    def may_change(self, user: str) -> frozenset[str] | None:
        """The accounts whose jobs this user may change, as their coordinator; None: everybody's jobs."""
        if user in ("root", self.slurm_user()):
            return None
        with contextlib.suppress(SlurmError):  # no slurmdbd: nobody has been granted anything
            return None if user in self.operators() else self.coordinated(user)
        return frozenset()

    def _changes_all(self) -> bool:
        """Whether the caller may change everybody's jobs; asked again until that is so."""
        if not self._operator:
            with contextlib.suppress(KeyError):  # in a container the user may have no name
                self._operator = self.may_change(pwd.getpwuid(os.geteuid()).pw_name) is None
        return self._operator

    def _changes_nodes(self) -> bool:
        """Whether the caller may: Slurm lets no operator do so. Asked again until that is so."""
        if not self._administrator:
            with contextlib.suppress(KeyError, SlurmError):
                user = pwd.getpwuid(os.geteuid()).pw_name
                self._administrator = user in ("root", self.slurm_user()) or user in self.operators("admin")
        return self._administrator

    def qos_names(self) -> frozenset[str]:
        """Every QOS that slurmdbd knows."""
        return frozenset(self._printed("sacctmgr", "-n", "-P", "show", "qos", "format=name").split())

    def accounts(self) -> frozenset[str]:
        """The accounts there are; none without slurmdbd."""
        return frozenset(self._printed("sacctmgr", "-n", "-P", "show", "account", "format=Account").split())

    def _users(self, *words: str) -> list[tuple[str, str, str]]:
        """(name, "|", the second field) of what sacctmgr shows."""
        shown = self._printed("sacctmgr", "-n", "-P", "show", "user", *words)
        return [line.partition("|") for line in shown.splitlines()]

    def slurm_user(self) -> str:
        """The name of SlurmUser, who may do everything in Slurm; empty when it is not known."""
        return self._configured("SlurmUser")

    def private_data(self) -> str:
        """What Slurm hides of others, as PrivateData names it, such as "jobs,usage"; "none": nothing."""
        return self._configured("PrivateData")

    def epilog(self) -> str:
        """The first script that Slurm runs when a job leaves a node; empty: none."""
        found = re.search(r"(?m)^Epilog(?:\[\d+\])?\s*=\s*(/\S+)", self._shown("show", "config"))
        return found[1] if found else ""

    def refuses(self, by: str, node: str, partition: str) -> str:
        """Why Slurm, or the site's plugin, would refuse a job of one GPU; empty: it would not. `by`: srun, for a job
        without a script, or sbatch; `node`: one that it must get, or empty. Nothing is submitted."""
        words = [by, "--test-only", "-N1", "--gres=gpu:1", "--time=1", f"--partition={partition}"]
        words += [f"--nodelist={node}"] if node else []
        done = self._run([*words, *(["--wrap=true"] if by == "sbatch" else ["true"])])
        return "" if done.returncode == 0 else _said(done)

    def _configured(self, key: str) -> str:
        return accounting.configured(self._shown("show", "config"), key)

    def release(self) -> tuple[int, int]:
        """(22, 5) when Slurm 22.05 is installed here; slurmctld is not asked."""
        done = self._run(["scontrol", "-V"])
        found = re.search(r"(\d+)\.(\d+)", done.stdout)
        if found is None:
            raise _no_answer(done, "scontrol -V")
        return int(found[1]), int(found[2])

    def _update(self, name: str, *what: str) -> None:
        self._scontrol(["update", f"JobId={name}", *what], f"change job {name}")

    def _scontrol(self, words: Sequence[str], what: str) -> str:
        done = self._run(["scontrol", *words])
        if done.returncode != 0:
            raise _refusal(done, what)
        return done.stdout

    def _scancel(self, name: str, job_id: int) -> bool:
        """True when it has ended or will; False when Slurm does not know the name."""
        done = self._run(["scancel", "-v", name])
        if _UNKNOWN_JOB.search(done.stderr):
            return False
        if _HAS_ENDED.search(done.stderr):
            return True
        if done.returncode != 0 or NO_ANSWER.search(done.stderr):
            raise _refusal(done, f"cancel job {job_id}")
        return True

    def _array_name(self, job_id: int) -> str:
        """8_1 for a task of array 8; "" when there is no such job, or it is no task."""
        separator = _separator()
        fields = ("JobID", "ArrayJobID", "ArrayTaskID")
        words = ["squeue", "-h", "-a", "-j", str(pending_resize.job_number(job_id))]
        done = self._run([*words, "-O", parse.format_of(fields, separator)])
        if _UNKNOWN_JOB.search(done.stderr):
            return ""
        if done.returncode != 0:
            raise _no_answer(done, "squeue")
        for number, array, task in parse.records(done.stdout, fields, separator, "squeue"):
            if number == str(job_id) and task.isdigit():
                return f"{int(array)}_{int(task)}"
        return ""

    def _listing(self, command: str, options: list[str], fields: Sequence[str]) -> Iterator[list[str]]:
        separator = _separator()
        done = self._run([command, "-h", *options, "-O", parse.format_of(fields, separator)])
        if done.returncode != 0:
            raise _no_answer(done, command)
        if done.stderr.strip():
            # 22.05 leaves a field that it does not know empty, with status 0 and a message on stderr.
            if "format specification" in done.stderr:
                raise SlurmUnparsable(f"{command} does not know a field: {_said(done)}")
            if NO_ANSWER.search(done.stderr):
                raise _no_answer(done, command)
        return parse.records(done.stdout, fields, separator, command)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        until = getattr(self._of_thread, "until", None)
        left = self._timeout_s if until is None else max(0.1, until - time.monotonic())
        try:
            return subprocess.run(
                [*self._prefix, *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=left,
                # Times as Unix seconds: no time zone to guess.
                env={**self._environment, "SLURM_TIME_FORMAT": "%s"},
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmUnreachable(f"{command[0]} did not end within {left:.2g} s.") from None
        except OSError as error:
            raise SlurmUnreachable(f"{command[0]} cannot be run: {error}.") from error


def says_ended(text: str) -> bool:
    """Whether Slurm refused because the job has ended: that says nothing of any other job."""
    return _UNKNOWN_JOB.search(text) is not None or _HAS_ENDED.search(text) is not None


def members_of(groups: frozenset[str] | None) -> frozenset[str] | None:
    """Who is in one of these groups as this host knows them, which is how Slurm's host does; None: not known."""
    try:
        found = [grp.getgrnam(name) for name in groups or ()]
    except KeyError:
        return None
    ids, listed = {group.gr_gid for group in found}, {user for group in found for user in group.gr_mem}
    return frozenset(listed.union(one.pw_name for one in pwd.getpwall() if one.pw_gid in ids)) if found else None


def _refusal(done: subprocess.CompletedProcess[str], what: str) -> SlurmRefused | SlurmUnreachable:
    if NO_ANSWER.search(done.stderr) or done.returncode < 0:
        return _no_answer(done, "slurmctld")
    return SlurmRefused(f"Slurm refused to {what}: {_said(done)}")


def _no_answer(done: subprocess.CompletedProcess[str], who: str) -> SlurmUnreachable:
    return SlurmUnreachable(f"No answer from {who}: {munge.with_cause(_said(done))}")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    lines = dict.fromkeys(line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip())
    return ("; ".join(lines) or f"exit status {done.returncode}")[:MAX_SAID]


def _separator() -> str:
    return f"~{secrets.token_hex(6)}~"
