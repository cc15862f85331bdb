"""T4: compiled and graphed models over worlds of 1, 2 and 1: what is trained is what eager code trains, and a worker
that stays compiles nothing again. Limit: gloo's collectives cannot be captured in a graph."""

from __future__ import annotations

from checking import STAND_IN, Check, scratch
from resized import SAMPLES
from resizing import Training, difference

BAR = 1e-4


def compiled(check: Check, kind: str) -> None:
    with scratch(10**7) as folder, Training(check, folder, kind) as training:
        training.begin(1)
        training.stepped(6)
        (first,) = training.control.members
        before = training.seen(first)[-1].get("graphs", 0)
        for size in (2, 1):
            training.resize(size)
            training.stepped(6)
        final = training.ends()
        again = training.seen(first)[-1].get("graphs", 0) - before
        training.kind = "fp32"
        off = difference(
            {"model": {key.replace("_orig_mod.", ""): value for key, value in final["model"].items()}},
            training.alone(final["epochs"]),
        )
        problem = training.audited(SAMPLES, final["epochs"])
        text = f"off by {off:.1e} from eager code, {again} graphs more {problem}"
        check.figure(f"{kind}, worlds of 1, 2, 1", text, off <= BAR and not again and not problem, f"{BAR}, 0 graphs")


def main() -> None:
    check = Check()
    for kind in ("compiled",) if STAND_IN else ("compiled", "reduced", "graphed"):
        with check.part(kind):
            compiled(check, kind)


if __name__ == "__main__":
    main()
