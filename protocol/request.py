"""The elastic request: what sizes and batches a job accepts. One grammar and one parser, for every part of the product.

    elastic:gpus=2-32,batch=256-8192[,step=2][,group=2][,slice=2][,lr=sqrt][,combine=mean][,weight=2]
            [,via=companion+shrink][,until=quality][,guard=80][,deadline=20:00][,budget=100]
    elastic:gpus=2-32[,step=2][,group=2][,weight=2][,via=companion+shrink][,speedup=0.9][,deadline=20:00][,budget=100]

The second is of a job that `selastic hold` gives nodes to: it has no batch. A range is 2-32 or 2:32, as everywhere on
the command line. The prefix `elastic:` marks it inside a job's comment; the SPANK option and the command line leave it
out.
Pure: no I/O, standard library only. It knows nothing of the cluster: whether a partition can hold such a job is
the daemon's to say.
"""

import re
from calendar import monthrange
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from .errors import RequestError

PREFIX = "elastic:"
ACCEPTED_FORM = PREFIX + "gpus=MIN-MAX,batch=MIN-MAX"
COMBINES = ("mean", "adasum")
LR_RULES = ("auto", "none", "linear", "sqrt", "sde", "adascale")
MECHANISMS = ("companion", "component", "shrink", "requeue", "expand")
"""The ways to change an allocation, the cheapest first. A test holds the daemon's registry and the parsers in C and Lua
to this table."""
ENDS = ("epochs", "quality")
DEFAULT_VIA = ("shrink", "companion", "component")
LARGEST = 1_000_000_000
MOST_GPUS = 100_000
"""Bounds `sizes()`: whoever writes a comment must not be able to fill the daemon's memory."""
MOST_GUARD = 100
DEADLINES = "HH:MM[:SS], YYYY-MM-DD[THH:MM[:SS]], now+COUNT[UNIT] such as now+8hours"
_CLOCK = r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?"
_DATE = r"(?P<year>2[0-9]{3})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12][0-9]|3[01])"
_MOMENT = re.compile(rf"now\+[0-9]{{1,9}}(?:(?:second|minute|hour|day|week)s?)?|{_CLOCK}|{_DATE}(?:T{_CLOCK})?")
WITH_BATCH = ("slice", "lr", "combine", "until", "guard")
KEYS = (
    "gpus",
    "batch",
    "step",
    "group",
    "slice",
    "lr",
    "combine",
    "weight",
    "via",
    "until",
    "guard",
    "speedup",
    "deadline",
    "budget",
)


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """What a job accepts. GPUs and batches are totals over the whole job; every bound is inclusive."""

    min_gpus: int
    max_gpus: int
    min_batch: int = 0
    max_batch: int = 0
    """0: it is `selastic hold`'s, and has no batch."""
    step: int = 1
    """Distance between sizes, in GPUs, counted from `min_gpus`."""
    group: int = 1
    """GPUs of one model-parallel replica; sizes are whole multiples of it."""
    slice: int = 1
    """Samples of a replica in one step are a whole multiple of it."""
    lr: str = "auto"
    combine: str = "mean"
    """What all ranks step with, made of their gradients."""
    weight: float = 1.0
    via: tuple[str, ...] = DEFAULT_VIA
    until: str = "epochs"
    """What ends the training: a number of epochs, or a quality that is reached. Then samples that a large batch wastes
    are paid for, and the planner counts them."""
    guard: int = 0
    """Per cent of its worth at the first batch that a sample keeps at least, by the measured gradient noise; until that
    is measured no larger batch than the first is taken. 0: every batch in the range is as good as another."""
    speedup: float = 0.0
    """Without a batch: twice the GPUs are twice as fast times this, as far as nothing was measured; 0: nobody says."""
    deadline: str = ""
    """When the training is to be done, in one of DEADLINES, as of the job's submission: text/times.py reads it."""
    budget: float = 0.0
    """What it may cost, in GPU-hours or in what the site charges for them; 0: nobody says."""

    def sizes(self) -> tuple[int, ...]:
        """Every accepted number of GPUs, ascending."""
        return tuple(k for k in range(self.min_gpus, self.max_gpus + 1, self.step) if k % self.group == 0)

    def accepts(self, gpus: int) -> bool:
        """Whether the job may hold exactly this many GPUs."""
        in_range = self.min_gpus <= gpus <= self.max_gpus
        return in_range and (gpus - self.min_gpus) % self.step == 0 and gpus % self.group == 0

    def batches(self, gpus: int) -> tuple[int, ...]:
        """Global batches to consider at `gpus` GPUs, ascending; empty when no accepted batch is shared out evenly.

        A batch is feasible when every replica gets the same number of samples, a multiple of `slice`. Of the feasible
        ones this gives both ends of the range and the powers of two times the smallest between them: the curve is flat
        between neighbours. Without a batch each GPU counts as one sample.
        """
        if not self.max_batch:
            return (gpus,)
        replicas = max(1, gpus // self.group)
        unit = replicas * self.slice
        lowest = -(-self.min_batch // unit) * unit
        highest = self.max_batch // unit * unit
        if lowest > highest:
            return ()
        ladder = {lowest, highest}
        batch = lowest * 2
        while batch < highest:
            ladder.add(batch)
            batch *= 2
        return tuple(sorted(ladder))

    def text(self) -> str:
        """The request in its shortest form; `parse` gives an equal object back."""
        words = [f"gpus={_range(self.min_gpus, self.max_gpus)}"]
        words += [f"batch={_range(self.min_batch, self.max_batch)}"] if self.max_batch else []
        defaults: tuple[tuple[str, object, object], ...] = (
            ("step", self.step, self.group),
            ("group", self.group, 1),
            ("slice", self.slice, 1),
            ("lr", self.lr, "auto"),
            ("combine", self.combine, "mean"),
            ("weight", self.weight, 1.0),
            ("via", "+".join(self.via), "+".join(DEFAULT_VIA)),
            ("until", self.until, "epochs"),
            ("guard", self.guard, 0),
            ("speedup", f"{self.speedup:.6f}".rstrip("0").rstrip("."), "0"),
            ("deadline", self.deadline, ""),
            ("budget", f"{self.budget:.6f}".rstrip("0").rstrip("."), "0"),
        )
        words += [f"{key}={value}" for key, value, default in defaults if value != default]
        return PREFIX + ",".join(words)


def find(comment: str) -> str | None:
    """The request's text inside a job comment, prefix (in any case) included; None when the comment holds none. What
    separates words, and what is a letter, is ASCII's: the site's rules must see every request that counts here."""
    match = re.search(r"(?:\A|[ \t\n\r\f\v;])((?ai:elastic:)[^ \t\n\r\f\v;]*)", comment)
    return match.group(1) if match else None


@lru_cache(maxsize=1 << 14)
def parse(text: str) -> ElasticRequest:
    """Read a request, with or without its prefix, which may stand in any case.

    Raises RequestError with one sentence naming the key, the value and what is accepted.
    """
    words = _words(re.sub(r"\A(?ai:elastic:)", "", text))
    if "gpus" not in words:
        raise RequestError(f"elastic request '{text}' has no gpus=; accepted: gpus=MIN-MAX,batch=MIN-MAX")
    if "batch" in words and "speedup" in words:
        raise RequestError("speedup= does not go with batch=; accepted: one of them")
    for key in WITH_BATCH:
        if "batch" not in words and key in words:
            raise RequestError(f"{key}= goes with batch= alone; accepted: both or neither")
    min_gpus, max_gpus = _bounds("gpus", words["gpus"], MOST_GPUS)
    min_batch, max_batch = _bounds("batch", words["batch"], LARGEST) if "batch" in words else (0, 0)
    group = _whole("group", words.get("group", "1"), MOST_GPUS)
    request = ElasticRequest(
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        min_batch=min_batch,
        max_batch=max_batch,
        step=_whole("step", words.get("step", str(group)), MOST_GPUS),
        group=group,
        slice=_whole("slice", words.get("slice", "1"), LARGEST),
        lr=_one_of("lr", words.get("lr", "auto"), LR_RULES),
        combine=_one_of("combine", words.get("combine", "mean"), COMBINES),
        weight=_decimal("weight", words.get("weight", "1"), 0.0, 1000),
        via=tuple(_one_of("via", word, MECHANISMS) for word in words.get("via", "+".join(DEFAULT_VIA)).split("+")),
        until=_one_of("until", words.get("until", "epochs"), ENDS),
        guard=_whole("guard", words["guard"], MOST_GUARD) if "guard" in words else 0,
        speedup=_speedup(words["speedup"]) if "speedup" in words else 0.0,
        deadline=_deadline(words["deadline"]) if "deadline" in words else "",
        budget=_decimal("budget", words["budget"], 0.0, 999_999) if "budget" in words else 0.0,
    )
    if request.combine == "adasum" and request.lr not in ("auto", "none"):
        raise RequestError(f"lr={request.lr} does not go with combine=adasum; accepted: lr=none")
    _check_feasible(request)
    return request


def check_start(request: ElasticRequest, gpus: int) -> None:
    """Raise RequestError when the size the job starts with is not one that it accepts."""
    if request.accepts(gpus):
        return
    nearest = min(request.sizes(), key=lambda size: (abs(size - gpus), size))
    plain = request.step == request.group == 1
    raise RequestError(
        f"the job starts with {gpus} GPU{'' if gpus == 1 else 's'}, "
        f"which gpus={_range(request.min_gpus, request.max_gpus)}"
        f"{'' if plain else f' (step {request.step}, group {request.group})'} excludes; "
        f"nearest accepted size: {nearest}"
    )


def _words(body: str) -> dict[str, str]:
    words: dict[str, str] = {}
    for word in body.split(","):
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise RequestError(f"'{word}' in the elastic request is not KEY=VALUE; accepted keys: {', '.join(KEYS)}")
        if key not in KEYS:
            close = get_close_matches(key, KEYS, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise RequestError(f"unknown key '{key}' in the elastic request{hint}; accepted keys: {', '.join(KEYS)}")
        if key in words:
            raise RequestError(f"{key}= stands twice in the elastic request; give it once")
        words[key] = value
    return words


def _check_feasible(request: ElasticRequest) -> None:
    sizes = request.sizes()
    if not sizes:
        raise RequestError(
            f"gpus={_range(request.min_gpus, request.max_gpus)} holds no multiple of group={request.group} "
            f"at step={request.step}; accepted: a range with at least one"
        )
    if request.max_batch and not any(request.batches(size) for size in sizes):
        raise RequestError(
            f"batch={_range(request.min_batch, request.max_batch)} cannot be shared out evenly at any size "
            f"in gpus={_range(request.min_gpus, request.max_gpus)}; accepted: a range holding a multiple of "
            f"{max(1, sizes[0] // request.group) * request.slice}"
        )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _bounds(key: str, value: str, most: int) -> tuple[int, int]:
    low_text, dash, high_text = value.partition(":" if ":" in value else "-")
    low = _whole(key, low_text, most)
    high = _whole(key, high_text, most) if dash else low
    if low > high:
        raise RequestError(f"{key}={value} has its minimum above its maximum; accepted: {key}=MIN-MAX, MIN <= MAX")
    return low, high


def _whole(key: str, value: str, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", value) or not 1 <= int(value) <= most:
        raise RequestError(f"{key}={value} is not accepted; accepted: a whole number from 1 to {most}")
    return int(value)


def _decimal(key: str, value: str, above: float, most: int, or_else: str = "") -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", value) or not above < float(value) <= most:
        raise RequestError(
            f"{key}={value} is not accepted; accepted: {or_else}a number above {above:g}, at most {most}"
        )
    return float(value)


def _speedup(value: str) -> float:
    return 1.0 if value == "linear" else _decimal("speedup", value, 0.5, 1, "linear, or ")


def _deadline(value: str) -> str:
    found = _MOMENT.fullmatch(value)
    if found is None or (found["year"] and int(found["day"]) > monthrange(int(found["year"]), int(found["month"]))[1]):
        raise RequestError(f"deadline={value} is not accepted; accepted: {DEADLINES}")
    return value


def _one_of(key: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise RequestError(f"{key}={value} is not known; accepted: {', '.join(accepted)}")
    return value
