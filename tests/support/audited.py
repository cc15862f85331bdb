"""The check of a record of samples (`selastic run --audit`): none was lost, and none repeated."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.training.audit import Line, effective, read, restored, undone


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What the record of one training says."""

    ok: bool
    epochs_seen: int
    missing: int
    """Samples of finished or begun epochs that no step has trained on."""
    repeated: int
    """Times a sample was trained on again within its epoch."""
    steps: int
    steps_lost: int
    """Steps of the count that are not recorded by every rank."""
    steps_repeated: int
    """Steps taken in two worlds, none of which was set back by a restart."""
    worlds: int
    restarts: int = 0
    problems: tuple[str, ...] = ()


def check(directory: str | Path, samples: int, epochs: int) -> AuditResult:
    """Check a record of `epochs` passes over `samples` samples.

    A world restored from step s supersedes every line of an older generation beyond s, and one that did not come about
    counts for nothing. Raises TrainingError when there is no record.
    """
    lines = list(read(Path(directory)))
    if not lines:
        raise TrainingError(f"no audit record in {directory}; run with SELASTIC_AUDIT={directory}")
    begun = restored(lines)
    steps = effective(lines)
    by_step: dict[int, list[Line]] = defaultdict(list)
    for entry in steps:
        by_step[int(entry["step"])].append(entry)
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(epochs)}
    for entry in steps:
        seen.setdefault(int(entry["epoch"]), Counter()).update(entry["indices"])
    missing = sum(samples - len(counts) for counts in seen.values())
    repeated = sum(counts.total() - len(counts) for counts in seen.values())
    last = max(by_step, default=0)
    lost = [step for step in range(1, last + 1) if not _whole(by_step.get(step, []))]
    twice = [step for step, entries in by_step.items() if len({entry["generation"] for entry in entries}) > 1]
    strange = sorted({index for counts in seen.values() for index in counts if not 0 <= index < samples})
    problems = [f"step {step} is not recorded by every rank" for step in lost[:5]]
    problems += [f"step {step} was taken in two worlds" for step in sorted(twice)[:5]]
    problems += [f"sample {index} does not exist" for index in strange[:5]]
    void = undone(lines)
    generations = {int(e["generation"]) for e in lines if "indices" in e and e["generation"] not in void}
    ok = not (missing or repeated or lost or twice or strange) and len(seen) == epochs
    return AuditResult(
        ok=ok,
        epochs_seen=sum(1 for counts in seen.values() if counts),
        missing=missing,
        repeated=repeated,
        steps=len(by_step),
        steps_lost=len(lost),
        steps_repeated=len(twice),
        worlds=len(generations),
        restarts=max(0, len(begun) - 1),
        problems=tuple(problems),
    )


def _whole(entries: list[Line]) -> bool:
    """One line from each rank of one world, and of every rank as many."""
    ranks = Counter((entry["generation"], entry["rank"]) for entry in entries)
    return bool(entries) and len(ranks) == int(entries[0]["size"]) and len(set(ranks.values())) == 1
