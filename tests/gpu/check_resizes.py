"""T3: worlds of 2, 4, 1, 3 and 2 on one GPU; a worker, and a joiner in its first step, killed: what is trained is what
one process trains, each sample of each epoch once.

Limits: gloo has no all-to-all nor reduce-scatter of CUDA tensors, so neither deterministic= nor FSDP is tried.
"""

from __future__ import annotations

from typing import Any

from checking import STAND_IN, Check, left_s, scratch
from resized import OVERFLOW, SAMPLES
from resizing import Training, difference

KINDS = {"fp32": (1e-5, "1e-5"), "conv": (2e-2, "2e-2"), "scaled": (2e-3, "2e-3")}
"""How far parameters may lie from one process's, by kind."""
SIZES = (4, 1, 3, 2)


def killed(training: Training) -> str:
    """A joiner dies in its first step: all others go back, and say so."""
    control = training.control
    (joiner,) = training.new(1, DIES="forward")
    generation = control.world(*control.members, joiner, bound_s=20, tell=False)
    control.exits(joiner, timeout_s=left_s(), hold=True)
    for name in control.members:
        control.send(name, {"type": "abort", "generation": generation, "lost": True})
    for name in control.members:

        def gone_back(worker: str, said: dict[str, Any], name: str = name) -> bool:
            return worker == name and said["type"] == "failed" and said["generation"] == generation

        if not control.wait(gone_back, left_s()).get("survived"):
            return f"{name} has not gone back"
    return ""


def resized(check: Check, kind: str) -> None:
    with scratch(10**7) as folder, Training(check, folder, kind) as training:
        training.begin(2)
        pauses = []
        for size in SIZES:
            training.stepped()
            pauses.append(training.resize(size))
        training.stepped()
        if kind == "fp32":
            problem = killed(training)
            check.figure("joiner killed in its first step", problem or "all others went back", not problem, "go back")
            training.stepped()
        final = training.ends()
        problem = training.audited(SAMPLES, final["epochs"])
        off = difference(final, training.alone(final["epochs"], "cpu" if kind == "fp32" else ""))
        bar, said = KINDS[kind]
        text = (
            f"off by {off:.1e}, {final['epochs']} epochs, resizes {', '.join(f'{s:.2f}' for s in pauses)} s {problem}"
        )
        check.figure(f"{kind}, worlds of 2, 4, 1, 3, 2", text, off <= bar and not problem, said)
        if kind == "scaled":
            seen = [line for name in training.control.zygote.pids for line in training.seen(name.rpartition(".")[2])]
            scales = {line["scale"] for line in seen if line["step"] == OVERFLOW + 1}
            check.figure("scale behind the overflow, all ranks", sorted(scales), scales == {512.0}, "512, once")


def main() -> None:
    check = Check()
    for kind in ("fp32",) if STAND_IN else KINDS:
        with check.part(kind):
            resized(check, kind)


if __name__ == "__main__":
    main()
