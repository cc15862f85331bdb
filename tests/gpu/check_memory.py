"""T5: what resizes leave in the device's memory: nothing. And T2 as far as one GPU goes: a worker whose GPU is busy for
long is gone soon after it was killed, and saves as soon as the GPU has come to that.

Limit: over gloo no collective hangs on the GPU; the stand-in's suites have those (tests/unit/trainer_shim).
"""

from __future__ import annotations

import os
import time

from checking import STAND_IN, Check, left_s, scratch
from resizing import Training

ROUNDS = 8


def kept(check: Check) -> None:
    full = check.cuda and not STAND_IN
    width, rounds = ("4096", ROUNDS) if full else ("32", 3)
    with scratch(10**7) as folder, Training(check, folder, "memory", WIDTH=width) as training:
        training.begin(1)
        (first,) = training.control.members
        training.stepped()
        done = 0
        until = 0.35 * left_s()
        for _ in range(rounds):
            training.resize(2)
            training.stepped(2)
            training.resize(1)
            training.stepped(2)
            done += 1
            if left_s() < until:
                break
        seen = training.seen(first)
        alone: dict[int, dict[str, float]] = {}
        for line in seen:
            if line["size"] == 1:
                most = alone.setdefault(line["world"], line)
                alone[line["world"]] = max(most, line, key=lambda at: at.get("allocated", 0))
        second, last = list(alone.values())[1], list(alone.values())[-1]
        if check.cuda:
            more = (last["allocated"] - second["allocated"]) / 1e6
            print([line["allocated"] for line in alone.values()])
            text = f"{more:+.2f} MB from {second['allocated'] / 1e6:.1f} MB, {done} times 1-2-1"
            check.figure("memory allocated", text, more <= (0 if full else 0.1), "+0" if full else "0.1")
            times = last["reserved"] / max(1.0, second["reserved"])
            check.figure(
                "memory reserved, of the second world's",
                f"{times:.2f}",
                times <= (1.2 if full else 2),
                "1.2" if full else "2",
            )
        else:
            check.figure("resizes", f"{done} times 1-2-1")


def busy(check: Check) -> None:
    with scratch(10**7) as folder, Training(check, folder, "fp32", SPINS_AT="6", SPINS_S="8") as training:
        training.begin(1)
        (first,) = training.control.members
        while not (folder / "spins").exists():
            if left_s() < 2:
                raise AssertionError("the worker does not get to its long step")
            time.sleep(0.02)
        begun = time.perf_counter()
        training.control.kill(first)
        training.control.exits(first, timeout_s=left_s(), hold=True)
        took = time.perf_counter() - begun
        check.figure("gone after SIGKILL, with 8 s of work on the GPU", f"{took:.2f} s", took <= 5, "5 s")


def main() -> None:
    check = Check()
    with check.part("memory"):
        kept(check)
    with check.part("busy"):
        busy(check)
    os._exit(0)


if __name__ == "__main__":
    main()
