"""B2 and B3: how long a resize takes to hand the state to joiners on the same GPU, by its size; and first steps.

B2: worlds of 1, 2 and 1, and of 1 and 3, whose joiners are ready before. B3: the first step of a joiner, and of a
worker that stays and gets another share of the batch, in usual steps. Limit: over gloo, through host memory.
"""

from __future__ import annotations

import statistics
from typing import Any

from checking import STAND_IN, Check, left_s, scratch
from resizing import Training

SIZES = {"0.3 GB": ("2500", 0.0), "3 GB": ("7900", 14.0)}
"""The width of a model whose parameters and optimizer's state take so much, and the seconds that it needs."""
BAR_S = 0.5


def handed(check: Check, name: str, width: str) -> None:
    with scratch(10**7) as folder, Training(check, folder, "moved", WIDTH=width) as training:
        training.begin(1)
        training.stepped(2)
        for joiners in (1, 2):
            names = training.new(joiners)
            took = training.resize(1 + joiners, names)
            bar = (took <= BAR_S, f"{BAR_S} s") if name == "3 GB" else (None, "")
            check.figure(f"{name} to {joiners}", f"{took:.2f} s until the new world runs", *bar)
            training.stepped(2)
            training.resize(1)
            training.stepped(2)


def first_steps(check: Check, kind: str) -> None:
    with scratch(10**7) as folder, Training(check, folder, kind) as training:
        training.begin(1)
        training.stepped(10)
        training.resize(2)
        training.stepped(20)
        for what, name in zip(("worker that stays", "joiner"), training.control.members, strict=True):
            seen: list[dict[str, Any]] = [line for line in training.seen(name) if line["size"] == 2]
            usual = statistics.median(line["s"] for line in seen[3:])
            ratio = seen[0]["s"] / usual
            text = f"{1e3 * seen[0]['s']:.1f} ms, {ratio:.1f} usual steps"
            check.figure(
                f"{kind}: first step of a {what}", text, ratio <= 2 if what == "joiner" else None, "2 of a joiner"
            )


def main() -> None:
    check = Check()
    full = check.cuda and not STAND_IN
    if check.args.name == "B3":
        for kind in ("fp32", "conv") if full else ("fp32",):
            with check.part(kind):
                first_steps(check, kind)
        return
    for name, (width, needs_s) in (SIZES if full else {"0.1 MB": ("64", 0.0)}).items():
        if left_s() > needs_s:
            with check.part(name):
                handed(check, name, width)


if __name__ == "__main__":
    main()
