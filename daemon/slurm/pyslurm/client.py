"""Slurm through pyslurm 25.11's documented API, where a build of it for the installed Slurm is found.

Promise: listings, shrinks, comments and requeues without a program started for each: one worker process carries all.
Limit: what pyslurm cannot do, or does wrongly, goes through commands: cancel (it reads a stale errno), an empty comment
(it takes "" for unset), a waiting job's size (no NumNodes), reservations, limits; listings too, of releases before
25.11 and of sites whose AccountingStorageTRES does not name gres/gpu.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from slurm_elastic.protocol.errors import SlurmRefused, SlurmUnparsable, SlurmUnreachable

from .. import arguments
from ..commands import DEFAULT_PATH, CommandClient, says_no_answer
from ..model import Snapshot
from .process import WORKER, NoReply, PySlurmProcess
from .worker import NOT_IMPORTABLE, UNPARSABLE, UNTRACKED

log = logging.getLogger(__name__)

_JOB_ERRORS = range(2000, 4000)
"""Errnos with which slurmctld itself answers (ESLURM_…); around them lie sockets, the protocol and credentials."""
GIVE_UP = 2
"""Calls of a kind in a row that pyslurm hangs or crashes in before commands do all of the kind."""
T = TypeVar("T")


class PyslurmUnusable(Exception):
    """Why pyslurm cannot be used here."""


class PySlurmClient(CommandClient):
    """A SlurmClient on pyslurm. May be used from any thread; `close` ends the worker.

    Commands do what pyslurm does not, and everything once a restarted worker finds that pyslurm is no longer one for
    the installed Slurm. timeout_s: for one call, also when slurmctld keeps pyslurm waiting. worker: see PySlurmProcess.
    Raises PyslurmUnusable when pyslurm cannot be used from the beginning.
    """

    def __init__(
        self,
        slurm_conf: str = "",
        *,
        timeout_s: float = 30.0,
        prefix: Sequence[str] = (),
        path: str = DEFAULT_PATH,
        worker: Sequence[str] = WORKER,
    ) -> None:
        super().__init__(slurm_conf, timeout_s=timeout_s, prefix=prefix, path=path)
        self._worker = PySlurmProcess(worker, slurm_conf, timeout_s, self._accept)
        self._usable = self._lists = self._changes = True
        self._no_listing = self._no_change = 0
        """How many times in a row the worker has hung or crashed in one."""
        self._unread = ""
        """Why commands gave the last listing in place of pyslurm; empty: they did not."""
        self.version = ""
        try:
            self._ask("about")
        except SlurmUnreachable as error:
            self.close()
            raise PyslurmUnusable(str(error).rstrip(".")) from None

    def close(self) -> None:
        """End the worker; a later call would start another."""
        self._worker.close()

    def about(self) -> str:
        """What goes through pyslurm, in words."""
        if not self._usable or not (self._lists or self._changes):
            return "Slurm's commands"
        if self._lists and self._changes:
            return f"pyslurm {self.version}"
        does, others = ("listings", "changes") if self._lists else ("changes", "listings")
        return f"pyslurm {self.version} for {does}, Slurm's commands for {others}"

    def snapshot(self) -> Snapshot:
        """When pyslurm cannot read a job, commands are used for the whole listing."""
        if not self._lists:
            return super().snapshot()
        try:
            found, why, self._no_listing = self._through(super().snapshot, "snapshot"), "", 0
        except (SlurmUnparsable, NoReply) as error:
            found, why = super().snapshot(), str(error)  # which fails too where it is slurmctld that does not answer
            if isinstance(error, NoReply):
                self._no_listing += 1
                self._lists = self._no_listing < GIVE_UP or self._given_up("listings", error)
        if why and why != self._unread:
            log.warning("Slurm's commands are used for listings as long as pyslurm cannot read them: %s", why)
        self._unread = why
        return found

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        # Never `nodes`, which silently does nothing.
        changes = {"required_nodes": arguments.node_names(nodes, f"job {job_id}")}
        self._modify(partial(super().shrink, job_id, nodes), job_id, changes)

    def set_comment(self, job_id: int, text: str) -> None:
        if text:
            changes = {"comment": arguments.comment(text, job_id)}
            self._modify(partial(super().set_comment, job_id, text), job_id, changes)
        else:
            super().set_comment(job_id, text)

    def requeue(self, job_id: int) -> None:
        number = arguments.job_number(job_id)
        self._change(partial(super().requeue, job_id), "requeue", number, doing=f"requeue job {job_id}")

    def _modify(self, otherwise: Callable[[], None], job_id: int, changes: dict[str, Any]) -> None:
        self._change(otherwise, "modify", arguments.job_number(job_id), changes, doing=f"change job {job_id}")

    def _change(self, otherwise: Callable[[], None], name: str, *values: Any, doing: str) -> None:
        """What has ended without an answer is not done again: it may have been done."""
        if not self._changes:
            otherwise()
            return
        try:
            self._through(otherwise, name, *values, doing=doing)
        except NoReply as error:
            self._no_change += 1
            self._changes = self._no_change < GIVE_UP or self._given_up("changes", error)
            raise
        except SlurmRefused:
            self._no_change = 0
            raise
        self._no_change = 0

    def _given_up(self, kind: str, error: NoReply) -> bool:
        words = "Slurm's commands are used for %s from now on, until selasticd is started again: %s"
        log.warning(words, kind, error)
        return False

    def _through(self, otherwise: Callable[[], T], name: str, *values: Any, doing: str = "") -> T:
        """The worker's answer, or the commands' where pyslurm turns out to be unable."""
        if self._usable:
            try:
                value: T = self._ask(name, *values, doing=doing)
                return value
            except PyslurmUnusable as error:
                log.warning("Slurm's commands are used in place of pyslurm: %s", error)
        return otherwise()

    def _ask(self, name: str, *values: Any, doing: str = "") -> Any:
        done, value, *text = self._worker.call(name, *values)
        if done:
            return value
        if value == UNPARSABLE:
            raise SlurmUnparsable(*text)
        if value == UNTRACKED:
            self._lists = False
            raise PyslurmUnusable(*text)
        if value in _JOB_ERRORS and not says_no_answer(text[0]):
            raise SlurmRefused(f"Slurm refused to {doing}: {text[0]}")
        self.close()  # it has read slurm.conf once: slurmctld may have moved since
        raise SlurmUnreachable(f"No answer from slurmctld: {text[0]} ({value})")

    def _accept(self, reply: tuple[Any, ...]) -> None:
        """Take a new worker, by what it says about itself; else PyslurmUnusable."""
        done, value, *text = reply
        why = ""
        if not done:
            why = text[0] if value == NOT_IMPORTABLE else f"it says {text[0]!r}"
        else:
            self.version, lists = value
            self._lists = self._lists and lists
            installed = self.release()
            if release_of(self.version) != installed:
                why = f"pyslurm {self.version} is not one for Slurm {installed[0]}.{installed[1]:02d}, installed here"
        if why:
            self._usable = False
            raise PyslurmUnusable(why)


def release_of(version: str) -> tuple[int, int]:
    """(22, 5) of 22.5.3 and of 22.05.8; (0, 0) of anything else."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
