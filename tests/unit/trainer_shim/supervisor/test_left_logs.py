"""The logs of companions that a job has left."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.trainer_shim.supervisor.left_logs import KEPT, put_together


def test_old_logs_are_put_together_and_nothing_is_lost(tmp_path: Path) -> None:
    """Whatever the number of companions, the files are those of the base, of what is in use, and of the last few."""
    base = ["100.n1.0.log", "100.n1.0.2.log", "agents-100.log"]
    for name in base:
        (tmp_path / name).write_text("base")
    for number in range(101, 201):
        (tmp_path / f"{number}.n-2.x.0.log").write_text(f"worker of {number}\n")
        (tmp_path / f"agents-{number}.log").write_text(f"agent of {number}\n")
        put_together(tmp_path, {100, 101, number})
    left = range(200 - KEPT, 200)
    names = {f"{number}.n-2.x.0.log" for number in (101, *left, 200)}
    names |= {f"agents-{number}.log" for number in (101, *left, 200)}
    assert {path.name for path in tmp_path.iterdir()} == {*base, "left.log", *names}
    together = (tmp_path / "left.log").read_text()
    for number in range(102, 200 - KEPT):
        assert f"==> {number}.n-2.x.0.log <==\nworker of {number}\n" in together
        assert f"==> agents-{number}.log <==\nagent of {number}\n" in together
