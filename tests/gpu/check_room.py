"""T7: a smaller world, whose ranks compute more each, does not fit into the GPU's memory: the old one goes on and says
so, the next such world computes less at a time, and what is trained is what one process trains."""

from __future__ import annotations

from checking import STAND_IN, Check, left_s, scratch
from resized import SAMPLES
from resizing import Training, difference

BAR = 1e-5


def main() -> None:
    check = Check()
    row_mb, room_mb = ("40", "800") if check.cuda and not STAND_IN else ("1", "20")
    limits = {"ROW_MB": row_mb, "ROOM_MB": room_mb, **({"STANDIN_MEMORY_MB": room_mb} if STAND_IN else {})}
    with check.part("room"), scratch(10**7) as folder, Training(check, folder, "room", **limits) as training:
        control = training.control
        training.begin(2)
        training.stepped()
        before = list(control.members)
        generation = control.world(before[0], bound_s=20, tell=False)
        ended = control.wait(
            lambda _, said: said["type"] in ("failed", "running") and said["generation"] == generation, left_s()
        )
        refused = bool(ended.get("survived"))
        check.figure("the old world", "goes on" if refused else ended, refused, "goes on")
        told = [said["error"][:60] for said in control.all("no_room") if said["generation"] == generation]
        check.figure("the size", told[0] if told else "is not named", bool(told), "named")
        if refused:
            training.stepped()
            training.resize(1)
            training.stepped()
        else:
            control.members = before[:1]
        final = training.ends()
        training.kind = "fp32"
        off, problem = (
            difference(plain(final), training.alone(final["epochs"])),
            training.audited(SAMPLES, final["epochs"]),
        )
        check.figure("parameters", f"off by {off:.1e} {problem}", off <= BAR and not problem, f"{BAR}")


def plain(final: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """By the names that they have without the layer in front."""
    return {"model": {f"{int(n.split('.')[0]) - 1}.{n.split('.')[1]}": v for n, v in final["model"].items()}}


if __name__ == "__main__":
    main()
