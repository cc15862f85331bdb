"""The runner of the checks on a GPU: what does not end is ended, and its row says where it was."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_runner", ROOT / "tests" / "gpu" / "runner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = _runner()


def _check(tmp_path: Path, text: str) -> object:
    script = tmp_path / "check.py"
    script.write_text(text)
    return runner.Check("C", "made up", 1.0, str(script))


FIGURE = """
import json, sys
out = sys.argv[sys.argv.index("--out") + 1]
with open(out + "/C.figures.jsonl", "a") as file:
    file.write(json.dumps({"name": "n", "value": "1 ms", "ok": True, "bar": "2 ms"}) + "\\n")
"""


def test_a_check_that_ends_has_its_figures_in_its_row(tmp_path: Path) -> None:
    """No error, and the verdict is that of its figures."""
    row = runner.run(_check(tmp_path, FIGURE), tmp_path, "cpu", 60)
    assert (row.verdict, row.error) == ("OK", "")
    assert row.figures == [{"name": "n", "value": "1 ms", "ok": True, "bar": "2 ms"}]


def test_a_check_that_raises_keeps_its_figures_and_says_why(tmp_path: Path) -> None:
    """The last line of its traceback, and the place."""
    row = runner.run(_check(tmp_path, FIGURE + "raise ValueError('too hot')\n"), tmp_path, "cpu", 60)
    assert row.verdict == "BAD"
    assert "exit code 1: ValueError: too hot" in row.error
    assert "check.py" in row.error
    assert len(row.figures) == 1


def test_a_check_that_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Also what has a session of its own; the row has the top of the stacks."""
    script = FIGURE + (
        "import faulthandler, os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open(out + '/child', 'w').write(str(child.pid))\n"
        "faulthandler.dump_traceback_later(0.01)\n"
        "time.sleep(600)\n"
    )
    row = runner.run(_check(tmp_path, script), tmp_path, "cpu", 3)
    assert row.verdict == "BAD"
    assert "not done after 3 s" in row.error
    assert 'check.py", line' in row.error
    assert len(row.figures) == 1
    stat = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    assert not stat.exists() or not runner.alive(stat.parent)


def test_a_check_that_leaves_a_process_behind_is_bad(tmp_path: Path) -> None:
    """It would disturb the next one's figures."""
    leaves = FIGURE + "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    row = runner.run(_check(tmp_path, leaves), tmp_path, "cpu", 60)
    assert (row.verdict, row.error) == ("BAD", "1 processes left behind")


def test_the_table_has_a_verdict_for_each_check_and_each_bar() -> None:
    """OK, BAD where a bar is missed or there was an error, SKIP; figures without a bar have none."""
    figure = {"name": "form()", "value": "3 ms", "bar": "", "ok": None}
    rows = [
        runner.Row("A", "a", 1.0, [figure, {"name": "n", "value": "1", "bar": "2", "ok": True}]),
        runner.Row("B", "b", 2.0, [{"name": "n", "value": "3", "bar": "2", "ok": False}]),
        runner.Row("C", "c", 3.0, [figure], "exit code 1: ValueError: no"),
        runner.Row("D", "d", error="SKIP: no time left"),
    ]
    assert [row.verdict for row in rows] == ["OK", "BAD", "BAD", "SKIP"]
    lines = [" ".join(line.split()) for line in runner.table(rows).splitlines()]
    assert "A a 1.0 OK" in lines
    assert "OK n: 1 2" in lines
    assert "form(): 3 ms" in lines
    assert "BAD n: 3 2" in lines
    assert "C c 3.0 BAD exit code 1: ValueError: no" in lines


def test_all_deadlines_together_fit_the_time_that_a_machine_is_there() -> None:
    """465 s, and every check is a file of this tree."""
    checks = [check for suite in runner.SUITES.values() for check in suite]
    assert sum(check.seconds for check in checks) <= 465
    assert all((ROOT / check.file).is_file() for check in checks)


@pytest.mark.parametrize(("without", "code"), [("fail", 1), ("skip", 0)])
def test_without_a_gpu_it_says_so(tmp_path: Path, without: str, code: int) -> None:
    """One sentence, and an error unless it is told otherwise."""
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: False)\n"
        "    device_count = staticmethod(lambda: 0)\n__version__ = '0'\n"
    )
    command = [sys.executable, str(ROOT / "tests/gpu/runner.py"), "--out", str(tmp_path / "out"), "test-gpu"]
    answer = subprocess.run(
        [*command, "--without-gpu", without], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert answer.returncode == code
    assert answer.stderr.startswith("no GPU to check on: torch 0 finds none; the stand-in for NCCL is not built: ")
    assert answer.stderr.count("\n") == 1


def test_make_runs_both_in_one_go(tmp_path: Path) -> None:
    """Named together they are one run, so that a check that fails keeps none from running; neither asks a registry."""
    for goals in (["test-gpu"], ["bench-gpu"], ["test-gpu", "bench-gpu"]):
        command = ["make", "--no-print-directory", "-n", *goals, "PYTHON=py", f"OUT={tmp_path}"]
        given = ("MAKE", "GPU_PYTHON", "WITHOUT_GPU")  # by `make test`, which may run this
        env = {name: value for name, value in os.environ.items() if not name.startswith(given)}
        answer = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        lines = [line for line in answer.stdout.splitlines() if line != ":"]
        assert lines == [f"py tests/gpu/runner.py --out {tmp_path}  {' '.join(goals)}"]


def test_a_line_that_a_check_was_killed_in_is_left_out(tmp_path: Path) -> None:
    """What stands before it counts."""
    (tmp_path / "f").write_text(json.dumps({"name": "n", "value": "1"}) + '\n{"name": "m", ')
    assert runner.read_figures(tmp_path / "f") == [{"name": "n", "value": "1", "bar": "", "ok": None}]


@pytest.mark.skipif(find_spec("torch") is None, reason="the checks need torch, and it is not installed here")
def test_every_check_finds_what_it_uses_of_the_product() -> None:
    """They run where a GPU is, seldom: a name that has moved is to be seen here."""
    files = [ROOT / check.file for suite in runner.SUITES.values() for check in suite]
    path = [runner.python_path(), *{str(file.parent) for file in files}, str(ROOT / "benchmarks")]
    command = [sys.executable, "-c", f"import {', '.join(file.stem for file in files)}, step_train"]
    answer = subprocess.run(command, env={**os.environ, "PYTHONPATH": ":".join(path)}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
