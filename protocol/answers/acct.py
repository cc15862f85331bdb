"""The rows of `selastic acct`: one for each size that a job has had. Filled by daemon/reports/acct.py."""

from __future__ import annotations

from ..text.cells import folded, moment, number
from ..text.times import elapsed
from .common import JobRecord
from .record import Column, about, record


def _end(row: Allocation) -> str:
    if row.end is None:
        return "Unknown" if row.start is not None else ""
    return moment(row.end)


@record
class Allocation(JobRecord):
    """One size that a job has had, with what it cost and what it brought."""

    name: str | None = about("job name", Column("Name", "JobName"))
    state: str = about(
        "RESIZED or RESTARTED for what was left behind, else the job's state", Column("State"), public=True
    )
    start: float | None = about("when this size began to train", Column("Start", form=moment))
    end: float | None = about(
        "when it ended", Column("End", help="when it ended; Unknown: it has this size now", cell=_end)
    )
    elapsed_s: float | None = about(
        "how long, in seconds",
        Column("Elapsed", help="how long, [D-]HH:MM:SS", form=elapsed),
        Column("ElapsedRaw", form=number(1)),
    )
    gpus: int = about("GPUs", Column("GPUs"), public=True)
    nodes: int | None = about("nodes", Column("Nodes", "NNodes"))
    node_list: str | None = about("names of the nodes", Column("NodeList", form=folded))
    batch: int | None = about("global batch, in samples", Column("Batch"))
    steps: int | None = about("optimizer steps done at this size", Column("Steps"))
    samples: int | None = about("samples trained on at this size", Column("Samples"))
    samples_per_s: float | None = about(
        "samples by elapsed time, the pause included", Column("Samples/s", form=number())
    )
    gpu_hours: float | None = about("GPUs times elapsed time, in hours", Column("GPUHours", form="{:.2f}".format))
    # The first size of a job has no pause, and an unmeasured one is no zero.
    pause_s: float | None = about(
        "what the resize that began this row cost the training, in seconds",
        Column("Pause", form=lambda pause: f"{pause:.2f}" if pause else ""),
    )
    generation: int | None = about("number of the world of workers", Column("Generation", "Gen"))
    resize: int | None = about("id of the resize that began this row; 0: none did", Column("Resize"))
    reason: str | None = about("why it got this size, as a code", Column("Reason"))
    reason_text: str | None = about("why it got this size, in words", Column("Because"))


@record
class Accounting:
    """Every size that jobs have had, by job and start."""

    allocations: tuple[Allocation, ...]
