"""The tree is a house: rooms of a readable size, names that say something, tests where the code is."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOPS = ("protocol", "client", "trainer_shim", "db", "daemon")
MOST = 14
"""Modules in one folder."""


def folders() -> list[Path]:
    """Every folder with Python in it."""
    found = {path.parent.relative_to(ROOT) for top in TOPS for path in (ROOT / top).rglob("*.py")}
    return sorted(found)


def modules(folder: Path) -> list[str]:
    """The names of a folder's own modules."""
    return [path.stem for path in (ROOT / folder).glob("*.py") if not path.stem.startswith("__")]


@pytest.mark.parametrize("folder", folders(), ids=str)
def test_a_folder_can_be_read_at_a_glance(folder: Path) -> None:
    """About a dozen modules; more are two concepts."""
    assert len(modules(folder)) <= MOST, sorted(modules(folder))


@pytest.mark.parametrize("folder", folders(), ids=str)
def test_no_file_repeats_its_folders_name(folder: Path) -> None:
    """mechanisms/requeue, not mechanisms/mechanisms_requeue; planner/plan, not planner/planner."""
    name = folder.name
    assert [module for module in modules(folder) if module == name or module.startswith(name + "_")] == []


def test_unit_tests_mirror_the_tree() -> None:
    """Each folder of tests has a folder of the product beside it, so that a test is found by its module's place."""
    tests = ROOT / "tests" / "unit"
    tested = {path.parent.relative_to(tests) for top in TOPS for path in (tests / top).rglob("test_*.py")}
    assert [str(folder) for folder in sorted(tested) if not (ROOT / folder).is_dir()] == []


def distribution(folder: str) -> configparser.ConfigParser:
    """What one of the two distributions is made from."""
    config = configparser.ConfigParser()
    config.read(ROOT / folder / "setup.cfg")
    return config


@pytest.mark.parametrize(("folder", "tops"), [(".", TOPS[:3]), ("packaging/daemon", TOPS[3:])])
def test_every_folder_is_in_a_wheel(folder: str, tops: tuple[str, ...]) -> None:
    """A folder that no setup.cfg lists is there in a checkout, and missing where it is installed; one that is gone
    breaks the build. What a user installs holds nothing of the daemon."""
    listed = {name.removeprefix("slurm_elastic.") for name in distribution(folder)["options"]["packages"].split()}
    there = {".".join(path.parts) for path in folders() if path.parts[0] in tops}
    assert there == listed


def test_both_distributions_are_of_one_version() -> None:
    """The daemon's asks for the other one of the same release."""
    version = distribution(".")["metadata"]["version"]
    daemon = distribution("packaging/daemon")
    assert daemon["metadata"]["version"] == version
    assert f"slurm-elastic =={version}" in daemon["options"]["install_requires"].splitlines()
