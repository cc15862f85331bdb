"""What two runs of a rehearsal have in common, as rows of a table.

Parameters are equal where they differ by no more than rounding in another order makes of it; of float32 that is a
thousandth of what training has changed. Limit: what both runs do wrong alike is not seen.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..training import audit

ROUNDING = {8: 1e-9, 4: 1e-3, 2: 5e-2}
"""By bytes of a number: the largest difference, in parts of what training has changed."""


@dataclass(frozen=True)
class Row:
    """One thing that is to hold."""

    name: str
    held: bool
    detail: str = ""


class Trained:
    """What one run has left behind."""

    def __init__(self, folder: Path, code: int) -> None:
        self.code = code
        self.out = (folder / "out.txt").read_text(errors="replace")
        record = folder / "record"
        lines = [json.loads(line) for path in sorted(record.glob("*.jsonl")) for line in path.read_text().splitlines()]
        self.states = [line for line in lines if "sums" in line]
        self.files = [line for line in lines if "file" in line]
        self.about = [line for line in lines if "random" in line]
        self.steps = max((line["step"] for line in self.states), default=0)
        self.initial, self.final = (_loaded(record / f"{name}.pt") for name in ("initial", "final"))
        self.killed = (record / "killed").exists()
        self.audited = audit.effective(audit.read(folder / "audit")) if (folder / "audit").is_dir() else []

    def why(self) -> str:
        """What its output says of its end: the first line of the product's, or the last of all."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        apart = [line for line in lines if "holds another" in line]
        errors = [line for line in lines if re.match(r"(selastic: |\S+\| )?[\w.]*(Error|Exception)\b", line)]
        said = [line for line in lines if line.startswith("selastic: ") and "starting again" in line]
        return (apart or errors or said or lines or ["it wrote nothing"])[-1].removeprefix("selastic: ")[:300]


def compare(plain: Trained, resized: Trained) -> list[Row]:
    """The rows of the table."""
    sizes = [size for size, _ in sorted({(line["size"], line["generation"]) for line in resized.states}, key=_second)]
    went = resized.code == 0 and resized.killed and len(sizes) >= 4
    why = "" if went else resized.why()
    worlds = " > ".join(map(str, sizes))
    pauses = re.findall(r"workers, pause ([0-9.]+) s", resized.out)
    rows = [Row("grow, shrink and kill", went, f"{worlds} workers; {why}" if why else f"{worlds} workers, one killed")]
    if resized.steps == plain.steps:
        rows += [_samples(plain, resized), _parameters(plain, resized), _schedule(plain, resized)]
    rows += [_replicas(resized), _files(plain, resized)]
    random = sorted({name for line in plain.about for name in line["random"]})
    statistics = sorted({name for line in plain.about for name in line["statistics"]})
    if random:
        rows.append(Row("random numbers", True, f"dropout was off in both runs: {', '.join(random)[:80]}"))
    if statistics:
        rows.append(Row("not exact", True, f"BatchNorm sees a worker's own part: {', '.join(statistics)[:80]}"))
    if pauses:
        rows.append(Row("pause of a resize", True, ", ".join(f"{pause} s" for pause in pauses)))
    return rows


def table(rows: list[Row]) -> str:
    """The rows as text."""
    width = max(len(row.name) for row in rows)
    return "\n".join(f"{'ok  ' if row.held else 'FAIL'}  {row.name:{width}}  {row.detail}".rstrip() for row in rows)


def _samples(plain: Trained, resized: Trained) -> Row:
    wanted, found = _by_step(plain), _by_step(resized)
    other = [step for step in sorted(wanted) if wanted[step] != found.get(step)]
    name = "every sample once, in its step"
    if other:
        return Row(name, False, f"other samples, or another number of them, in {len(other)} steps from {other[0]} on")
    count = sum(counts.total() for counts in wanted.values())
    return Row(name, True, f"{count} samples or positions in {len(wanted)} steps")


def _by_step(run: Trained) -> dict[int, Counter[tuple[int, int]]]:
    found: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for line in run.audited:
        if line["step"] <= run.steps:
            found[line["step"]].update((line["epoch"], index) for index in line["indices"])
    return found


def _replicas(run: Trained) -> Row:
    """Parameters and optimizers' state on all ranks, after each step."""
    name = "the same on all ranks"
    if any(not line["sums"] for line in run.states):
        return Row(name, True, "nothing to compare")
    ranks: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for line in run.states:
        ranks[line["generation"], line["step"]].append(line["sums"])
    for (_, step), held in sorted(ranks.items()):
        other = [key for key in held[0] if any(sums.get(key) != held[0][key] for sums in held)]
        if other and set(map(len, held)) == {len(held[0])}:
            return Row(name, False, f"another {other[0]} after step {step}, and {len(other) - 1} more")
    return Row(name, "holds another" not in run.out, f"{len(ranks)} steps")


def _parameters(plain: Trained, resized: Trained) -> Row:
    name = "parameters as undisturbed"
    if plain.initial is None or plain.final is None or resized.final is None:
        return Row(name, False, "a run did not come to its end")
    if any(line["statistics"] for line in plain.about):
        return Row(name, True, "not compared: BatchNorm")
    begun, wanted, found = plain.initial["model"], plain.final["model"], resized.final["model"]
    worst, where, allowed = 0.0, "", 0.0
    for key in plain.final["parameters"]:
        change = float((wanted[key].double() - begun[key].double()).abs().max()) if wanted[key].numel() else 0.0
        off = float((wanted[key].double() - found[key].double()).abs().max()) if wanted[key].numel() else 0.0
        part, bound = (
            off / max(change, 1e-30) if off else 0.0,
            ROUNDING.get(wanted[key].element_size() // (1 + wanted[key].is_complex()), 1e-3),
        )
        if not where or part / bound > worst / allowed:
            worst, where, allowed = part, key, bound
    changed = any(not torch.equal(begun[key], wanted[key]) for key in plain.final["parameters"])
    if not changed:
        return Row(name, False, "training has changed none")
    return Row(
        name, worst <= allowed, f"{where} is off by {worst:.1e} of what training changed; rounding: {allowed:.0e}"
    )


def _schedule(plain: Trained, resized: Trained) -> Row:
    """Rates of all groups, after each step, where both runs have the state of one rank."""
    name = "schedule"
    wanted = {line["step"]: line["values"] for line in plain.states}
    for line in sorted(resized.states, key=lambda line: int(line["step"])):
        for key, value in wanted.get(line["step"], {}).items():
            if line["values"].get(key) != value:
                told = f"{key} is {line['values'].get(key)} on rank {line['rank']} after step {line['step']}"
                return Row(name, False, f"{told}, {value} undisturbed")
    return Row(name, True)


def _files(plain: Trained, resized: Trained) -> Row:
    """Names that both runs write, but for numbers in them, and by how many workers at a time."""
    name = "files written once"
    writers: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in resized.files:
        writers[line["file"], line["generation"]].add(line["worker"])
    several = sorted(file for (file, _), by in writers.items() if len(by) > 1)
    missing = sorted(
        {_nameless(line["file"]) for line in plain.files} - {_nameless(line["file"]) for line in resized.files}
    )
    if several:
        return Row(name, False, f"{several[0]} is written by several workers")
    if missing:
        return Row(name, False, f"{missing[0]} is not written")
    return Row(name, True, f"{len({line['file'] for line in plain.files})} files")


def _nameless(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _second(pair: tuple[int, int]) -> int:
    return pair[1]


def _loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True) if path.exists() else None
