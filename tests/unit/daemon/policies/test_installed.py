"""Policies of other distributions: installed for real, run by name, and unable to break a round."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from one_pool import plan

from slurm_elastic.daemon.cli.commands import simulate
from slurm_elastic.daemon.optimizer.errors import PolicyFailed
from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.policies import DEFAULT_POLICY, POLICIES
from slurm_elastic.daemon.policies import installed
from slurm_elastic.daemon.selasticd.settings import check
from slurm_elastic.protocol.errors import ConfigError

DOC = Path(__file__).parents[4] / "docs" / "how-to" / "write-a-policy.md"
HEAD = """import math, threading
from slurm_elastic.daemon.optimizer.policies import IDLE_SHARE, Policy
GO = threading.Event()
"""
UTILITY = HEAD + "{body}\nPOLICY = Policy('theirs', utility, IDLE_SHARE)\n"
PLANNER = HEAD + "{body}\nPOLICY = Policy('theirs', math.log, IDLE_SHARE, relative=True, planner=planner)\n"
JOBS = """job_id,submit_s,program,gpus,batch,duration_s
a,0,balanced,2,128,3600
b,60,compute,1,64,1800
c,90,compute,2,128,900
"""
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution with one module and one policy, as pip leaves it: a module and a .dist-info."""

    def add(name: str, module: str) -> None:
        module_name = name.replace("-", "_")
        (tmp_path / f"{module_name}.py").write_text(module)
        info = tmp_path / f"{module_name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{installed.GROUP}]\n{name} = {module_name}:POLICY\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    yield add
    for name in [name for name in POLICIES if name not in installed.BUILT_IN]:
        del POLICIES[name]
    if loaded := sys.modules.pop("theirs", None):
        getattr(loaded, "GO", threading.Event()).set()


def views(count: int = 3) -> list[JobView]:
    sizes = tuple((k, 1) for k in (1, 2, 4, 8))
    return [JobView(str(j), None, sizes, lambda k: (256,), 0, 0, 1, 256) for j in range(count)]


def planned(name: str = "theirs", capacity: int = 10) -> list[int]:
    POLICIES[name].begin_round()
    return [target.gpus for target in plan(views(), capacity, name).targets]


def refusal(name: str = "theirs") -> str:
    with pytest.raises(PolicyFailed) as caught:
        planned(name)
    return str(caught.value)


def example() -> str:
    """The complete module in the documentation."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    return next(block for block in blocks if block.startswith("import"))


def test_the_example_of_the_documentation_works_as_it_says(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docs/how-to/write-a-policy.md prints is installed, accepted as a setting, plans as its words promise, and is
    run in the simulator by its name."""
    install("oldest-first", example())
    assert check({"policy": "oldest-first"}).policy == "oldest-first"
    installed.use("oldest-first", 10.0)
    assert "oldest job" in POLICIES["oldest-first"].summary
    assert planned("oldest-first") == [8, 1, 1]
    document = simulated(tmp_path, capsys, "auto,oldest-first")
    assert [row["policy"] for row in document["policies"]] == ["auto", "oldest-first"]
    assert [row["completed"] for row in document["policies"]] == [3, 3]
    assert not [note for note in document["assumed"] if "gave no plan" in note]


def simulated(folder: Path, capsys: pytest.CaptureFixture[str], names: str) -> dict[str, Any]:
    """What `selastic simulate --json` prints of three jobs."""
    trace = folder / "jobs.csv"
    trace.write_text(JOBS)
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    assert simulate.run(parser.parse_args([str(trace), "--cluster", "2x4", "--policy", names, "--json"])) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_simulator_says_what_was_decided_without_the_policy(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of a policy that failed are not passed off as its own."""
    use = installed.use
    monkeypatch.setattr(installed, "use", lambda name, _: use(name, 60.0))  # a busy machine takes more than is shipped
    install("theirs", PLANNER.format(body="def planner(p):\n    return 1 / 0"))
    document = simulated(tmp_path, capsys, "theirs")
    assert document["policies"][0]["completed"] == 3
    (said,) = [note for note in document["assumed"] if "gave no plan in" in note]
    assert "raised ZeroDivisionError: division by zero: auto planned in its place" in said


def test_a_utility_alone_is_planned_exactly(install: Install) -> None:
    """The short form: the plan is the exact one for it."""
    install("theirs", UTILITY.format(body="def utility(s):\n    return s ** 3"))
    installed.use("theirs", 10.0)
    assert planned() == [8, 1, 1]  # cubes: all for one
    assert planned(capacity=12) == [8, 2, 2]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (PLANNER.format(body="def planner(p):\n    GO.wait()"), "gave no answer: nothing within"),
        (UTILITY.format(body="def utility(s):\n    GO.wait()"), "gave no answer: nothing within"),
        (PLANNER.format(body="def planner(p):\n    raise SystemExit(3)"), "raised SystemExit: 3"),
        (PLANNER.format(body="def planner(p):\n    return 1 / 0"), "raised ZeroDivisionError: division by zero"),
        (PLANNER.format(body="def planner(p):\n    return [0]"), "gave 1 choices for 3 jobs"),
        (PLANNER.format(body="def planner(p):\n    return [0, 0, -1]"), "gave job 2 choice -1; accepted: 0 to 3"),
        (PLANNER.format(body="def planner(p):\n    return [3, 3, 3]"), "gave 24 GPUs of a pool that has 10"),
        (PLANNER.format(body="def planner(p):\n    return ['x'] * 3"), "raised TypeError: 'str' object"),
        (UTILITY.format(body="def utility(s):\n    return math.nan"), "gave utility nan of progress"),
        (UTILITY.format(body="def utility(s):\n    raise KeyError('s')"), "raised KeyError: 's'"),
        (UTILITY.format(body="def utility(s):\n    return 'much'"), "raised ValueError: could not convert"),
    ],
)
def test_what_is_no_plan_is_said_and_never_taken(install: Install, module: str, said: str) -> None:
    """A policy that loops, sleeps, exits, raises, or gives nonsense: one error with its reason, in the time given."""
    install("theirs", module)
    installed.use("theirs", 0.2 if "nothing within" in said else 60.0)
    assert said in refusal()


def test_threads_do_not_pile_up_and_what_has_recovered_plans_again(install: Install) -> None:
    """A policy that is still busy is not asked again, and nobody waits for it; once its answer has come, too late, the
    next round asks it anew."""
    install("theirs", PLANNER.format(body="def planner(p):\n    GO.wait()\n    return [0] * len(p.choices)"))
    installed.use("theirs", 0.2)
    before = set(threading.enumerate())
    assert "nothing within its 0.2 s" in refusal()
    assert "still busy with an earlier question" in refusal()
    (busy,) = set(threading.enumerate()) - before
    sys.modules["theirs"].GO.set()
    busy.join()
    installed.use("theirs", 60.0)
    assert planned() == [1, 1, 1]


def test_its_time_is_that_of_all_its_answers_in_a_round_and_a_failure_stands(install: Install) -> None:
    """After a failure nothing is asked until the next round."""
    install("theirs", UTILITY.format(body="def utility(s):\n    return 1 / s"))
    installed.use("theirs", 30.0)
    theirs = POLICIES["theirs"]
    assert theirs.utilities([2.0]) == [0.5]
    with pytest.raises(PolicyFailed, match="raised ZeroDivisionError"):
        theirs.utilities([0.0])
    with pytest.raises(PolicyFailed, match="raised ZeroDivisionError"):
        theirs.utilities([2.0])
    theirs.begin_round()
    assert theirs.utilities([2.0]) == [0.5]


def test_a_planner_changes_its_own_copy_of_the_problem(install: Install) -> None:
    """Its limits hold for what the optimizer has, whatever it does to what it was given."""
    body = "def planner(p):\n    p.capacities[0] = 99\n    return [3, 3, 3]"
    install("theirs", PLANNER.format(body=body))
    installed.use("theirs", 60.0)
    assert "gave 24 GPUs of a pool that has 10" in refusal()


def test_limits_hold_for_planners_of_others(install: Install) -> None:
    """A planner cannot give a job less than its minimum: smaller sizes are no choices. GPUs given are whole choices."""
    install("theirs", PLANNER.format(body="def planner(p):\n    return [True] * len(p.choices)"))
    installed.use("theirs", 10.0)
    assert planned() == [2, 2, 2]  # True is index 1
    assert math.isfinite(plan(views(), 10, "theirs").value)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ImportError('no numpy')", "cannot be loaded: ImportError: no numpy"),
        ("POLICY = 3", "expected a Policy of slurm_elastic"),
        ("x = 1", "has no attribute 'POLICY'"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_refused_at_the_start(install: Install, module: str, said: str) -> None:
    """One sentence that names the policy and its distribution; nothing is left registered."""
    install("theirs", module)
    with pytest.raises(ConfigError, match=r"policy theirs \(theirs:POLICY of theirs 1\.0\) cannot be loaded") as caught:
        installed.use("theirs", 5.0)
    assert said in str(caught.value)
    assert "theirs" not in POLICIES


def test_names_are_checked_where_they_are_given(install: Install) -> None:
    """A name that nobody has is refused with those that there are; a built-in name stays the built-in policy's."""
    install("theirs", PLANNER.format(body="planner = None"))
    with pytest.raises(
        ConfigError, match=r"policy='their' is not accepted; accepted: auto, .*an installed policy's name"
    ):
        check({"policy": "their"})
    with pytest.raises(ConfigError, match=r"accepted: auto, .*, theirs"):
        installed.use("ours", 1.0)
    install(DEFAULT_POLICY, "raise SystemExit")
    installed.use(DEFAULT_POLICY, 1.0)
    assert DEFAULT_POLICY not in installed.found()
