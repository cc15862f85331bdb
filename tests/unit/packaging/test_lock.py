"""What packages are made of is named with its hashes, and is what setup.cfg accepts."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PACKAGING = ROOT / "packaging"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def locked(name: str) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a lock file, each with its hashes."""
    text = (PACKAGING / name).read_text().replace("\\\n", " ")
    lines = [line.split("--hash=") for line in text.splitlines() if line.strip()]
    return [(Requirement(line[0].strip()), [each.strip() for each in line[1:]]) for line in lines]


def asked(name: str) -> list[Requirement]:
    """What people wrote down, before it was resolved."""
    if name == "build-requirements.lock":
        lines = (PACKAGING / "build-requirements.txt").read_text().splitlines()
    else:
        config = configparser.ConfigParser()
        config.read(PACKAGING / "daemon" / "setup.cfg")
        lines = [line for line in config["options"]["install_requires"].splitlines() if "slurm-elastic" not in line]
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def holds(marker: Marker | None, python: str) -> bool:
    """Whether a requirement is one on this Python, on Linux."""
    return marker is None or marker.evaluate({"python_version": python, "python_full_version": f"{python}.1"})


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", ["requirements.lock", "build-requirements.lock"])
def test_a_lock_has_what_is_asked_for(name: str, python: str) -> None:
    """On every Python that is promised, one version of each, which the requirement accepts."""
    versions = {
        canonicalize_name(one.name): re.sub("^==", "", str(one.specifier))
        for one, _ in locked(name)
        if holds(one.marker, python)
    }
    for requirement in asked(name):
        if holds(requirement.marker, python):
            version = versions.get(canonicalize_name(requirement.name), "none")
            assert requirement.specifier.contains(version), f"{requirement} is locked as {version}; run packaging/lock"


@pytest.mark.parametrize("name", ["requirements.lock", "build-requirements.lock"])
def test_a_lock_has_the_hashes_of_all_files(name: str) -> None:
    """pip refuses what has another, or none."""
    for one, hashes in locked(name):
        assert str(one.specifier).startswith("=="), one
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), one
