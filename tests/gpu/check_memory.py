"""T5: what resizes leave in the device's memory: nothing. And of T2: a worker whose GPU is busy for long is gone soon
after it was killed.

Limit: over gloo no collective hangs on the GPU; the stand-in's suites have those (tests/unit/trainer_shim).
"""

from __future__ import annotations

import os
import time
from typing import Any

from checking import STAND_IN, Check, left_s, scratch
from resized import BATCH, SAMPLES
from resizing import Training

ROUNDS = 8
PASS = 2 * SAMPLES // BATCH
"""Steps: within so many memory is once as at rest, as it varies with the loader within a pass."""


def least(seen: list[dict[str, Any]]) -> float:
    """The least that was allocated in the world of now, in bytes: what does not go."""
    return float(min(line["allocated"] for line in seen if line["world"] == seen[-1]["world"]))


def kept(check: Check) -> None:
    full = check.cuda and not STAND_IN
    width, rounds = ("4096", ROUNDS) if full else ("32", 3)
    with scratch(10**7) as folder, Training(check, folder, "memory", WIDTH=width) as training:
        training.begin(1)
        (first,) = training.control.members
        training.stepped()
        at_rest = reserved = 0.0
        done, until = 0, 0.35 * left_s()
        while done < rounds and (done < 2 or left_s() >= until):
            training.resize(2)
            training.stepped(2)
            training.resize(1)
            training.stepped(PASS if done == 0 else 2)
            done += 1
            # What the world of two held goes when its communicator has ended, which is a few steps behind the resize.
            while check.cuda and done > 1 and left_s() > 0.5 * until and least(training.seen(first)) > at_rest:
                training.stepped(1)
            if done == 1 and check.cuda:
                # By how much worlds overlap, as one ends behind the next, the allocator keeps more or less: the most.
                seen = training.seen(first)
                at_rest, reserved = least(seen), max(line["reserved"] for line in seen)
        if check.cuda:
            last = training.seen(first)
            more = (least(last) - at_rest) / 1e6
            text = f"{more:+.2f} MB from {at_rest / 1e6:.1f} MB, {done} times 1-2-1"
            check.figure("memory allocated", text, more <= 0, "+0")
            times = last[-1]["reserved"] / max(1.0, reserved)
            check.figure("memory reserved, of the most in the first 1-2-1", f"{times:.2f}", times <= 1.2, "1.2")
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
