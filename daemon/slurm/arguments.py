"""Checks of what is put into calls to Slurm, for every client: anything else is refused before Slurm sees it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_elastic.protocol.errors import SlurmRefused

from .nodelist import is_node_name

MAX_COMMENT = 1024
_NAME = re.compile(r"[\w.@+-]*", re.ASCII)


def job_number(job_id: int) -> int:
    """A possible job id."""
    if isinstance(job_id, bool) or not isinstance(job_id, int) or not 0 < job_id < 2**32:
        raise SlurmRefused(f"job_id={job_id!r}: accepted are whole numbers from 1.")
    return job_id


def node_names(nodes: Sequence[str], what: str) -> list[str]:
    """Names of one or more single nodes."""
    strange = next((name for name in nodes if not is_node_name(name)), None)
    if not nodes or strange is not None:
        raise SlurmRefused(f"nodes={strange!r} of {what}: accepted are the names of one or more single nodes.")
    return list(nodes)


def comment(text: str, job_id: int) -> str:
    """A comment of printable characters, which breaks no listing."""
    if not text.isprintable() or len(text) > MAX_COMMENT:
        raise SlurmRefused(f"comment={text[:60]!r} of job {job_id}: accepted are {MAX_COMMENT} printable characters.")
    return text


def plain_name(text: str) -> str:
    """A user's or a reservation's name; "" too."""
    if _NAME.fullmatch(text) is None:
        raise SlurmRefused(f"name={text[:60]!r}: accepted are letters, digits and . _ @ + -")
    return text
