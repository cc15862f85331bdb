"""What two runs of a rehearsal have in common, as rows of a table. Without torch, whose import is most of a rehearsal.

Parameters are equal where they differ by no more than rounding in another order makes of it; of float32 that is a
thousandth of what training has changed. Limit: what both runs do wrong alike is not seen.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from ..training import audit

ROUNDING = {8: 1e-9, 4: 1e-3, 2: 5e-2}
"""By bytes of a number: the largest difference, in parts of what training has changed."""
NUDGED = 10.0
"""The same in parts of what another last bit makes of it, where that is more."""
SEEDS = 3.0
"""How far a resized run with dropout may be off, in parts of what another seed makes of it."""
ENOUGH = 0.6
"""How often a line has to be written, in parts of the undisturbed run's, some of whose steps have two micro batches."""
NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?|\bnan\b|\binf\b")
FOLDERS = re.compile(r"/(?:[^\s/'\"]+/)+")
WORD = re.compile(r"\b[^\W\d]+\b")
OWN = re.compile(r"selastic: |batch \d+ on \d+ GPUs|restored from |$")
"""Lines of the product's."""
LOOKED_AT = 1 << 24
"""Bytes of a file."""
SHOWN = 5
UNDISTURBED = "parameters as undisturbed"


@dataclass(frozen=True)
class Row:
    name: str
    held: bool
    detail: str = ""


class Trained:
    """What one run has left behind."""

    def __init__(self, folder: Path, code: int) -> None:
        self.code, self.place = code, folder / "cwd"
        self.out = (folder / "out.txt").read_text(errors="replace")
        self.logs = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("job/logs/*.log")))
        record = folder / "record"
        lines = [json.loads(line) for path in sorted(record.glob("*.jsonl")) for line in path.read_text().splitlines()]
        kinds = ("sums", "file", "tensor", "ran")
        self.states, self.files, self.tensors, self.ran = ([line for line in lines if key in line] for key in kinds)
        names = ("random", "autocast", "statistics", "drawn", "apart", "shards")
        noted = (sorted({line[key] for line in lines if key in line}) for key in names)
        self.random, self.autocast, self.statistics, self.drawn, self.apart, self.shards = noted
        self.steps = max((line["step"] for line in self.states), default=0)
        self.killed = (record / "killed").exists()
        self.told = [int(word) for place in record.glob("told") for word in place.read_text().split()]
        self.saved = [int(path.parent.name[5:]) for path in folder.glob("job/checkpoints/step-*/checkpoint.json")]
        self.audited = audit.effective(audit.read(folder / "audit")) if (folder / "audit").is_dir() else []

    @property
    def worlds(self) -> dict[int, int]:
        """Of each generation, in their order, the number of workers."""
        return dict(sorted((line["generation"], line["size"]) for line in self.states))

    def why(self) -> str:
        """What its output says of its end: the last error, with the script's line, or the last line of all."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        apart = [line for line in lines if "holds another" in line]
        errors = [line for line in lines if re.match(r"(selastic: |\S+\| )?[\w.]*(Error|Exception)\b", line)]
        said = [line for line in lines if line.startswith("selastic: ") and "starting again" in line]
        if not apart + errors + said:  # argparse, say, writes its reason and exits
            own = [line for line in lines if not line.startswith("selastic: ")]
            last = dict.fromkeys(line.removeprefix("selastic: ") for line in own[-1:] + lines[-1:])
            return "; ".join(last)[:300] or "it wrote nothing"
        why = (apart or errors or said)[-1]
        frames = re.findall(r'^ *File "([^/<"][^"]*)", line (\d+)', self.out.partition(why)[0], re.MULTILINE)
        where = f" ({frames[-1][0]}:{frames[-1][1]})" if frames and not apart else ""
        return why.removeprefix("selastic: ")[:300] + where


def compare(plain: Trained, resized: Trained, nudged: Callable[[], Trained]) -> list[Row]:
    """The rows of the table. nudged: trains undisturbed from initial values with another last bit."""
    went = resized.code == 0 and resized.killed and len(resized.worlds) >= 4
    worlds = " > ".join(map(str, resized.worlds.values()))
    why = "one killed" if went else resized.why()
    pauses = re.findall(r"workers, pause ([0-9.]+) s", resized.out)
    rows = [Row("grow, kill and shrink", went, f"{worlds} workers; {why}")]
    if resized.steps == plain.steps:
        rows += [_samples(plain, resized), _parameters(resized, nudged), _schedule(plain, resized)]
    elif went:
        rows.append(Row("number of steps", False, f"{resized.steps}; undisturbed: {plain.steps}"))
    failed = [row.name for row in rows if not row.held]
    if plain.apart and failed == [UNDISTURBED]:  # another seed will tell
        told = f"not compared: {_named(plain.apart)} draws for a worker's part as a whole, others for other parts"
        rows = [row if row.held else Row(UNDISTURBED, True, told) for row in rows]
    rows.append(_replicas(resized))
    rows += [_written(plain, resized), _told(resized)] if went else []
    rows.append(_lines(plain, resized))
    for name, found, told in (
        ("random parts", plain.random, "off in both runs"),
        ("random numbers", plain.drawn, "each sample had its own in both runs; as it is a worker draws for its part"),
        ("shards", plain.shards, "read one after another; as it is, which samples share a step differs by workers"),
        ("autocast", plain.autocast, "off in both runs: rounding to 16 bits differs by the order of samples"),
        ("BatchNorm", plain.statistics, "normalised each sample by itself; as it is a worker normalises over its part"),
    ):
        if found:
            rows.append(Row(name, True, f"{_named(found)}: {told}"))
    if buffers := [line for line in resized.tensors if not line["parameter"]]:
        other = [line["tensor"] for line in buffers if line["off"][0]]
        told = f"{_named(other)} of {len(buffers)}: another value, by each worker's own calls; not compared"
        rows.append(Row("buffers", True, told if other else f"{len(buffers)} as undisturbed"))
    if pauses:
        rows.append(Row("pause of a resize", True, ", ".join(f"{pause} s" for pause in pauses)))
    return rows


def as_another_seed(plain: Trained, other: Trained, resized: Trained) -> Row:
    """Of three runs with random parts on: the resized one is off by no more than the one with another seed."""
    name = "with random parts on"
    failed = next((run for run in (plain, other, resized) if run.code != 0 or run.steps != plain.steps), None)
    if failed is not None:
        return Row(name, False, failed.why())
    seed, off = (math.sqrt(sum(line["off"][1] for line in _parts(run).values())) for run in (other, resized))
    part = off / seed if seed else math.inf if off else 0.0
    return Row(name, part <= SEEDS, f"parameters are off by {part:.1f} of what another seed makes of them")


def _named(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def table(rows: list[Row]) -> str:
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
    """Parameters and optimizers' state after each step, on all ranks that hold the same parts of them."""
    name = "the same on all ranks"
    if any(not line["sums"] for line in run.states):
        return Row(name, True, "nothing to compare")
    ranks: dict[tuple[int, int, str], list[Any]] = defaultdict(list)
    for line in run.states:
        ranks[line["generation"], line["step"], line["cuts"]].append(line["sums"])
    for (_, step, _), held in sorted(ranks.items()):
        other = [key for key in held[0] if any(sums.get(key) != held[0][key] for sums in held)]
        if other and set(map(len, held)) == {len(held[0])}:
            return Row(name, False, f"another {other[0]} after step {step}, and {len(other) - 1} more")
    return Row(name, "holds another" not in run.out, f"{len({key[:2] for key in ranks})} steps")


def _parameters(resized: Trained, nudged: Callable[[], Trained]) -> Row:
    """Where some are off by more than rounding, rounding is what another last bit makes of them: an attention's bias of
    keys, say, has no gradient but rounding, of which Adam makes whole steps."""
    name = UNDISTURBED
    if not any(line["changed"][0] for line in _parts(resized).values()):
        return Row(name, False, "training has changed none, or a run did not come to its end")
    worst, told = _worst(resized, {})
    if worst > 1 and any(line["bytes"] < 8 for line in _parts(resized).values()):
        worst, told = _worst(resized, _parts(nudged()))
    return Row(name, worst <= 1, told)


def _worst(run: Trained, nudged: dict[str, Any]) -> tuple[float, str]:
    """How far the worst parameter is off, in parts of its bound."""
    found = []
    for key, line in _parts(run).items():
        part, bound = line["off"][0] / max(line["changed"][0], 1e-30), ROUNDING.get(line["bytes"], 1e-3)
        if key in nudged:
            bound = max(bound, NUDGED * nudged[key]["off"][0] / max(line["changed"][0], 1e-30))
        told = f"{key} is off by {part:.1e} of what training changed; rounding: {bound:.0e}"
        found.append((math.inf if math.isnan(part) else part / bound, told))
    return max(found)


def _parts(run: Trained) -> dict[str, Any]:
    """What is said of parameters, by name."""
    return {line["tensor"]: line for line in run.tensors if line["parameter"]}


def _schedule(plain: Trained, resized: Trained) -> Row:
    """Rates of all groups, after each step, where both runs have the state of one rank."""
    name = "schedule"
    wanted = {line["step"]: line["values"] for line in plain.states}
    for line in sorted((line for line in resized.states if line["values"]), key=lambda line: int(line["step"])):
        for key, value in wanted.get(line["step"], {}).items():
            if line["values"].get(key) != value:
                told = f"{key} is {line['values'].get(key)} on rank {line['rank']} after step {line['step']}"
                return Row(name, False, f"{told}, {value} undisturbed")
    return Row(name, True)


def _written(plain: Trained, resized: Trained) -> Row:
    """Names that both runs write, but for numbers in them, by how many workers at a time; and their lines."""
    name = "files and lines written once"
    writers: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in resized.files:
        writers[line["file"], line["generation"]].add(line["worker"])
    files = {line["file"] for line in plain.files}
    found = {NUMBER.sub("#", line["file"]): line["file"] for line in resized.files}
    if several := sorted(file for (file, _), by in writers.items() if len(by) > 1):
        return Row(name, False, f"{several[0]} is written by several workers")
    if missing := sorted(file for file in files if NUMBER.sub("#", file) not in found):
        return Row(name, False, f"{missing[0]} is not written")
    kinds = 0
    for file in ("../out.txt", *sorted(files)):
        where = "the output" if file == "../out.txt" else file
        same = resized.place / file
        if not same.is_file():  # its name holds the time, say
            same = resized.place / found.get(NUMBER.sub("#", file), file)
        wanted, written = _lines_in(plain.place / file), _lines_in(same)
        kinds += len(wanted)
        for kind, lines in wanted.items():
            if len(written[kind]) < ENOUGH * len(lines):
                return Row(name, False, f"{where} has {len(written[kind])} of {len(lines)} lines: {lines[0][:60]}")
    if twice := _twice(plain, resized):
        return Row(name, False, twice)
    return Row(name, True, f"{len(files)} files, {kinds} kinds of lines")


def _twice(plain: Trained, resized: Trained) -> str:
    """A line of each step that one worker has written more often than it made steps; "" if there is none."""
    steps = Counter(line["worker"] for line in resized.states)
    wanted = _lines_in(plain.place / "../out.txt")
    for log in sorted(resized.place.glob("../job/logs/*.log")):
        for kind, lines in _lines_in(log).items():
            each = max(1, round(len(wanted[kind]) / plain.steps))
            more = max(0, len(wanted[kind]) - each * plain.steps) + 1  # of an evaluation, and of a step that was undone
            of_steps = len(wanted[kind]) >= ENOUGH * plain.steps and log.stem in steps
            if of_steps and len(lines) > each * steps[log.stem] + more:
                return f"{log.stem} wrote {len(lines)} lines in {steps[log.stem]} steps: {lines[0][:60]}"
    return ""


def _lines_in(path: Path) -> dict[tuple[str, ...], list[str]]:
    """Those of each kind: of the same words in any order, as a set prints them, but for numbers, names with digits and
    folders. What is no text, or the product's own, is none."""
    text, found = path.read_bytes()[:LOOKED_AT] if path.is_file() else b"", defaultdict(list)
    for line in [] if b"\0" in text else text.decode(errors="replace").split("\n"):
        if "\r" not in line and not OWN.match(line):
            found[tuple(sorted(WORD.findall(NUMBER.sub("", FOLDERS.sub(" ", line)))))].append(line.strip())
    return found


def _told(resized: Trained) -> Row:
    """What Slurm sends to the steps before a job's end is a checkpoint, and the training goes on."""
    name = "USR1 to workers and agents"
    if not resized.told:
        return Row(name, False, "the training was over before")
    step, generation = resized.told
    if max(resized.worlds) > generation:
        return Row(name, False, f"it ended the world after step {step}: {resized.why()}")
    saved = [number for number in resized.saved if number >= step]
    return Row(name, bool(saved), f"a checkpoint after step {min(saved)}" if saved else "no checkpoint followed")


def _lines(plain: Trained, resized: Trained) -> Row:
    """Which of the script's lines were seen: what no run has reached is not proven."""
    changes = dict(zip(list(resized.worlds)[1:], ("grow", "kill", "shrink"), strict=False))
    seen: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for line in plain.ran + resized.ran:
        ran = {(file, number) for file, numbers in line["ran"].items() for number in numbers}
        seen[""] |= ran
        seen[changes.get(line["generation"], "")] |= ran  # the other run has but one
    never, known = [], set[tuple[str, int]]()
    for file in sorted({file for file, _ in seen[""]}):
        numbers = executable(plain.place / file)
        known |= {(file, number) for number in numbers}
        for span in re.finditer("-+", "".join("x" if (file, number) in seen[""] else "-" for number in numbers)):
            first, last = numbers[span.start()], numbers[span.end() - 1]
            never.append(f"{file}:{first}" + (f"-{last}" if last > first else ""))
    told = "".join(f", {len(seen[change] & known)} after the {change}" for change in changes.values())
    text = f"{len(seen[''] & known)} of {len(known)} ran{told}"
    return Row("lines of the script", True, text + (f"; never: {_named(never)}" if never else ""))


def executable(path: Path) -> list[int]:
    """The numbers of the lines of a Python file that do something."""
    try:
        codes = [compile(path.read_bytes(), str(path), "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return []
    for code in codes:
        codes += [entry for entry in code.co_consts if isinstance(entry, CodeType)]
    return sorted({line for code in codes for *_, line in code.co_lines() if line})
