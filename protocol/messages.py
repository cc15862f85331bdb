"""The messages between a job's supervisor (or the command line) and selasticd, as plain frozen dataclasses.

codec.py says how they are read and written, and what holds between versions. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from .codec import MAX_NUMBER, VERSION, Within
from .codes import ResizeState
from .records import record

Count = Annotated[int, Within(1, 10**9)]
"""Of what is there if anything is: GPUs, samples, steps."""
StepSeconds = Annotated[float, Within(1e-6, 1e7)]
"""What a step can have taken: a microsecond to a hundred days."""


@record(frozen=True, slots=True)
class Piece:
    """A part of an allocation: one Slurm job id with its nodes."""

    slurm_job_id: int
    kind: str
    """base, component or companion."""
    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_type: str = ""

    @property
    def gpus(self) -> int:
        return len(self.nodes) * self.gpus_per_node


@record(frozen=True, slots=True)
class Shape:
    """What a companion is to look like; sizes are per node."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int = 1
    mem_mb_per_node: int = 0
    """0: the partition's default."""
    gpu_type: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    node_list: tuple[str, ...] = ()
    """Nodes it must get; empty: Slurm chooses."""
    by: str = ""
    """The command that asks for it, salloc or sbatch; empty: salloc, and sbatch where the site refuses that."""
    minutes: int = 0
    """The most that it may run; 0: as long as its job may."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Registration:
    """A supervisor says that it runs a job, on what, and how."""

    version: int
    generation: int
    pieces: tuple[Piece, ...]
    """The pieces whose GPUs train now."""
    batch: int
    program: str = ""
    request: str = ""
    """The elastic request given to `selastic run`; empty: the job's comment speaks."""
    max_micro_batch: int = 0
    """Largest micro batch per GPU; 0: unknown."""
    refusal: str = ""
    """What it does not understand of this daemon, and why it takes no resizes from it; empty: it takes them."""
    release: str = ""
    """Its version of slurm-elastic, for people."""
    unit: str = ""
    """What the speed of a job of `selastic hold` counts, which has no batch; empty: a training, which counts samples.
    """


@dataclass(frozen=True, slots=True)
class Grant:
    """selasticd's answer to a registration."""

    token: str
    managed: bool
    reason: str = ""
    report_interval_s: float = 5.0
    request: str = ""
    version: int = VERSION
    release: str = ""
    """The daemon's version of slurm-elastic, for people."""
    node_failure_s: float = 0.0
    """How long one node of the job's partition trains in the mean until a job loses it, or has to start again; 0: that
    was not observed."""
    script: tuple[Shape, ...] = ()
    """What the job's script asks Slurm for, as one shape; none: not known. Since version 7, as is the next."""
    alone_after_s: float = 0.0
    """How long the daemon may be out of reach until the job itself asks for what it lacks of that; 0: for ever."""


@record(frozen=True, slots=True)
class Report:
    """What one world did over a few seconds. Times in seconds, batch and samples over the whole job."""

    generation: int
    at: float
    gpus: Count
    nodes: Count
    batch: Count
    micro_batch: Count
    accumulation: Count
    steps: Count
    """Optimizer steps that the medians are taken over."""
    step_time_median_s: StepSeconds
    step_time_p90_s: StepSeconds
    samples_per_s: float
    step: int
    """Optimizer steps done since the start of the training."""
    samples: int
    """Samples trained on since the start of the training."""
    epoch: int = 0
    noise_scale: float = 0.0
    """Gradient noise scale in samples; 0: not measured."""
    input_wait_share: float = 0.0
    """Share of a step in which nothing is computed, for the samples are not there; the rank's that waits longest."""
    memory_peak_mb: float = 0.0
    comm_share: float = 0.0
    """Share of a step in which gradients travel and nothing computes, where nobody is waited for; 0: not measured."""
    bottleneck: str = ""
    """What holds the steps back, one of bottleneck.KINDS; empty: nothing worth naming, or not measured."""
    bottleneck_share: float = 0.0
    """Share of every step that would be saved without it."""
    bottleneck_rank: int = 0
    bottleneck_node: str = ""
    samples_left: int = 0
    """Until the training ends, as far as its script says that: epochs, or steps; 0: it does not."""
    unit: str = ""
    """What a job of `selastic hold` counts in place of samples: see Registration."""


@dataclass(frozen=True, slots=True)
class Reports:
    reports: tuple[Report, ...]
    version: int = VERSION


@record(frozen=True, slots=True)
class ResizeTarget:
    """What a resize is to reach: keep these pieces, add companions of these shapes, use this batch."""

    id: int
    job_id: int
    keep: tuple[Piece, ...]
    """What stays of the allocation; all else is given up."""
    add: tuple[Shape, ...]
    gpus: int
    batch: int
    reason: str
    wait_s: float
    """How long a companion may stay pending before the resize is given up."""

    @property
    def requeues(self) -> bool:
        """It keeps nothing: the job is put back into Slurm's queue and starts again in the one shape that is added.

        The supervisor writes a checkpoint and says `saved`; the daemon does the rest, and the job is told to end.
        """
        return not self.keep


@record(frozen=True, slots=True)
class Resize(ResizeTarget):
    """Tells a supervisor to carry out a resize. The same id always means the same one: taking it twice is harmless."""

    withdrawn: bool = False
    version: int = VERSION


FINISHED, ENDING = "finished", "ending"
"""Of no resize: the training has ended; the job was told that Slurm is about to end it, and grows no more."""
STALLED, STEPS_AGAIN = "stalled", "steps_again"
"""Of no resize: no step has been done for long, with who waits where in the detail; and steps are done again."""
TOO_LARGE = "no room in the memory of its GPUs"
"""What the detail of `failed` begins with where the size itself is why: it is not asked for again."""
HAPPENINGS = (
    *(ResizeState.ACCEPTED, ResizeState.SAVED, ResizeState.SUBMITTED, ResizeState.GRANTED, ResizeState.READY),
    *(ResizeState.RUNNING, ResizeState.FAILED, ResizeState.WITHDRAWN),
    *(FINISHED, STALLED, STEPS_AGAIN, ENDING),
)
"""What a supervisor may say that has happened."""
CHECKPOINTS = "checkpoints"
RATES = (CHECKPOINTS,)
"""What a supervisor may say the rate of."""


@record(frozen=True, slots=True)
class Unreached:
    """Two hosts of a job between which the network carries no connection."""

    host: str
    """Who tried."""
    other: str
    address: str
    """Of the other, without the port."""


@dataclass(frozen=True, slots=True)
class Happening:
    """How far a resize has come, or what else has happened to the job. `pieces` are those whose GPUs train now; with
    `running` they are the new ones. Since version 6, as is `Rate`: see `Phase`."""

    resize: int
    """Its id; 0: not because of a resize (a restart, the end of the training)."""
    what: str
    """One of HAPPENINGS."""
    generation: int
    pieces: tuple[Piece, ...]
    batch: int
    at: float = 0.0
    pause_s: float = 0.0
    """With `running`: from the last step of the old world to the first of the new, less one step. With `stalled`: since
    the last step."""
    step: int = 0
    """Steps done so far; with `running` the number of the world's first step."""
    samples: int = 0
    """Samples seen so far; with `running` those before the world's first step."""
    detail: str = ""
    exit_code: int = 0
    """With `finished`: what the supervisor is about to exit with; 128 + N after signal N."""
    unreached: tuple[Unreached, ...] = ()
    """With `failed`: the hosts that it failed for."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something is done, and what each costs; said again when that has changed."""

    of: str
    """One of RATES."""
    every_s: float
    """Seconds between two."""
    pause_s: float = 0.0
    """How long the training stands still for one."""
    write_s: float = 0.0
    """How long one is written, beside the training."""
    megabytes: float = 0.0
    """Of one."""
    version: int = VERSION


CHECKPOINTED = "checkpointed"
_IN_PHASES = {"what": "phase"}


@dataclass(frozen=True, slots=True)
class Phase:
    """What versions 2 to 5 say in place of `Happening` and `Rate`; understood until OLDEST is above 5."""

    resize: int
    phase: str
    """One of HAPPENINGS, or CHECKPOINTED, of which alone are the last three figures."""
    generation: int
    pieces: tuple[Piece, ...]
    batch: int
    at: float = 0.0
    pause_s: float = 0.0
    step: int = 0
    samples: int = 0
    detail: str = ""
    exit_code: int = 0
    unreached: tuple[Unreached, ...] = ()
    megabytes: float = 0.0
    write_s: float = 0.0
    every_s: float = 0.0
    version: int = VERSION

    @classmethod
    def of(cls, said: Happening | Rate) -> Phase:
        """The same for a daemon of an older version."""
        if isinstance(said, Rate):
            cost = said.megabytes, said.write_s, said.every_s
            return cls(0, CHECKPOINTED, 0, (), 0, 0.0, said.pause_s, 0, 0, "", 0, (), *cost)
        return cls(**{_IN_PHASES.get(item.name, item.name): getattr(said, item.name) for item in fields(said)})

    def now(self) -> Happening | Rate:
        """The same in today's words."""
        if self.phase == CHECKPOINTED:
            return Rate(CHECKPOINTS, self.every_s, self.pause_s, self.write_s, self.megabytes, self.version)
        names = [item.name for item in fields(Happening)]
        return Happening(**{name: getattr(self, _IN_PHASES.get(name, name)) for name in names})


@dataclass(frozen=True, slots=True)
class Reachable:
    """Two hosts reach each other again and may be put on one job; without `other`, a host and all others."""

    host: str
    other: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """Hold a job at so many GPUs; null lets it go."""

    gpus: Annotated[int, Within(1, 1_000_000)] | None


WORKS, REFUSED, NOT_TRIED = "works", "refused", "not tried"
MOST_SAID = 2000
"""Letters of what is said of one thing that was tried."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One thing that `selastic probe` has tried of a site's Slurm."""

    name: str
    outcome: str
    """WORKS, REFUSED or NOT_TRIED."""
    said: str = ""
    """What was seen, or why not; where Slurm or the site refused, their words."""
    seconds: Annotated[float, Within(0, 86400)] | None = None
    """How long it took, where that says something."""
    at: Annotated[float, Within(0, MAX_NUMBER)] = 0.0
    """When, in Unix seconds; the daemon's word."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe found in a partition; nothing that was tried: what was found there before is to be forgotten."""

    partition: str
    tried: tuple[Tried, ...] = ()
