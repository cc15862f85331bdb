"""A job of a trace, and numbers as traces have them. Promise: pure."""

import math
from dataclasses import dataclass

from slurm_elastic.protocol.errors import ElasticError


class TraceError(ElasticError):
    """A trace that cannot be read: file, line, what was expected."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace; 0 means "not given" in every number but submit_s."""

    job_id: str
    submit_s: float
    program: str
    gpus: int
    batch: int = 0
    samples: float = 0.0
    duration_s: float = 0.0
    min_gpus: int = 0
    max_gpus: int = 0
    min_batch: int = 0
    max_batch: int = 0
    weight: float = 1.0
    wait_s: float = -1.0
    """How long it waited, as recorded; below 0: not recorded."""
    until: str = ""
    """"epochs": every sample counts the same; "quality": by its worth at the batch; "": not said."""
    speedup: float = 0.0
    """Of a job without a batch, as its request has it."""
    deadline_s: float = 0.0
    """After its submission, when it is to be done."""
    user: str = ""
    account: str = ""


def number(row: dict[str, str], column: str, least: float = 0.0, default: float | None = None) -> float:
    """A finite number >= least; ValueError naming the column, the value and what was expected."""
    text = row.get(column, "")
    if text == "" and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{column} is '{text}'; expected a number of {least:g} or more")
    return value
