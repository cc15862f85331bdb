"""A training that has done no step for long: every rank is asked where it is, and one sentence says who waits where.

Pure. Nothing is killed but by `selastic run --hang-end`: what hangs may go on, and a collective has a bound of its
own. How long a step usually takes, and when rank 0 is in job.once(), the workers say. Limits: a step that a rank
computes for long looks like one that hangs, and the sentence says where it computes; a rank in backward() may wait
there, or compute.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SHOWN_GROUPS = 4

_OWN = "/slurm_elastic/trainer_shim/", str(Path(__file__).resolve().parents[1]) + "/"
_BACKWARD, _LOADER = "_engine_run_backward", "/dataloader.py"
_ONCE = "/loops/once.py"
_COMMUNICATION = "/distributed_c10d.py", "/c10d_logger.py"
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<")


@dataclass(frozen=True, slots=True)
class Place:
    doing: str
    """What it waits in, or that it does not."""
    at: str
    """The script's own line."""
    waits: bool
    """For other ranks, as far as one can see."""


def place(frames: Sequence[str], problem: str = "") -> Place:
    """frames: of the script's thread, innermost first, as `file:line function`. problem: why there are none."""
    if not frames:
        return Place(problem or "does not answer", "", waits=False)
    files = [frame.rpartition(":")[0] for frame in frames]
    functions = [frame.rpartition(" ")[2] for frame in frames]
    own = next((i for i, file in enumerate(files) if not _LIBRARY.search(file) and not is_own(file)), None)
    at = _shown(frames[own]) if own is not None else _shown(frames[0])
    called = [name for file, name in zip(files, functions, strict=True) if file.endswith(_COMMUNICATION[0])]
    if files[0].endswith(_COMMUNICATION):
        return Place(f"waits in {called[-1] if called else functions[0]}()", at, waits=True)
    if functions[0] == _BACKWARD:  # of DistributedDataParallel
        return Place("is in backward(), where gradients are exchanged,", at, waits=True)
    if own != 0 and any(file.endswith(_LOADER) for file in files[:own]):
        return Place("waits for a batch of its DataLoader", at, waits=False)
    if is_own(files[0]):
        return Place("waits for the other ranks", at, waits=True)
    if in_once(frames):
        return Place("is in job.once()", at, waits=False)
    return Place("is", at, waits=False)


def in_once(frames: Sequence[str]) -> bool:
    """Whether a rank is in job.once(): in the function that it was given, or waiting for rank 0, which is."""
    return any(is_own(frame) and _ONCE in frame for frame in frames)


def is_own(file: str) -> bool:
    """Whether a file, or a frame, is of this package."""
    return any(part in file for part in _OWN)


def _shown(frame: str) -> str:
    """`train.py line 12 in load()`."""
    file, _, rest = frame.rpartition(":")
    line, _, function = rest.partition(" ")
    return f"{Path(file).name} line {line}" + (f" in {function}()" if function.isidentifier() else "")


def sentence(
    seconds: float, usual_s: float, places: dict[int, Place], nodes: dict[int, str], over: bool = False
) -> str:
    """Who waits where. places: by rank; nodes: their names, by rank. over: the loop is over, and the script goes on."""
    step = f" (one takes {usual_s:.2g} s)" if usual_s else ""
    since = "the script has not ended, and its loop has for" if over else "no step for"
    parts = [f"{_who(ranks, nodes)} {_what(found, len(ranks))}" for found, ranks in groups(places)]
    more = f"; {len(parts) - SHOWN_GROUPS} more places" if len(parts) > SHOWN_GROUPS else ""
    return f"{since} {seconds:.0f} s{step}: {'; '.join(parts[:SHOWN_GROUPS])}{more}{_verdict(places)}"


def groups(places: dict[int, Place]) -> list[tuple[Place, list[int]]]:
    """Ranks at one place; those that wait for no other rank, and the fewest, first."""
    found: dict[Place, list[int]] = {}
    for rank in sorted(places):
        found.setdefault(places[rank], []).append(rank)
    return sorted(found.items(), key=lambda item: (item[0].waits, len(item[1]), item[1]))


def never_goes_on(places: dict[int, Place]) -> bool:
    """Whether ranks wait for each other at several of the script's lines: no step comes any more, but where it is the
    network that keeps some of them there."""
    return all(found.waits for found in places.values()) and len({found.at for found in places.values()}) > 1


def _verdict(places: dict[int, Place]) -> str:
    if len(places) < 2:
        return ""
    if not all(found.waits for found in places.values()):
        calls = {found for found in places.values() if found.waits and found.doing.startswith("waits in ")}
        if len(calls) != 1:
            return ""
        (call,) = calls
        return (
            f"; nobody else has come to the {call.doing.removeprefix('waits in ')} at {call.at}, which needs every rank"
        )
    if len({(found.doing, found.at) for found in places.values()}) > 1:
        return "; all wait, and not in the same call"
    return "; all wait in the same call, so the network or a GPU holds them up"


def _what(found: Place, count: int) -> str:
    doing = found.doing
    if count > 1:
        for one, several in (("is ", "are "), ("is", "are"), ("waits", "wait"), ("has", "have"), ("does", "do")):
            if doing.startswith(one):
                doing = several + doing[len(one) :]
                break
    return f"{doing} at {found.at}" if found.at else doing


def _who(ranks: Sequence[int], nodes: dict[int, str]) -> str:
    where = {nodes.get(rank, "") for rank in ranks}
    on = f" on {next(iter(where))}" if len(where) == 1 and "" not in where else ""
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}{on}"


def ranges(ranks: Iterable[int]) -> str:
    """`0, 2-7`."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in found)
