"""What packages ship beside Python files is named in setup.cfg, so that a wheel holds it."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("distribution", [".", "packaging/daemon"])
def test_every_file_of_a_package_is_shipped(distribution: str) -> None:
    """Templates, styles and data: a file that no pattern matches would be missing once installed."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / distribution / "setup.cfg")
    data = {name: [word.strip() for word in found.split(",")] for name, found in setup["options.package_data"].items()}
    packages = {name.removeprefix("slurm_elastic.").replace(".", "/") for name in setup["options"]["packages"].split()}
    listed = subprocess.run(["git", "ls-files", *packages], cwd=ROOT, capture_output=True, text=True, check=True)
    left = []
    for file in map(Path, listed.stdout.split()):
        package = next(parent for parent in file.parents if str(parent) in packages)
        patterns = data["*"] + data.get("slurm_elastic." + str(package).replace("/", "."), [])
        matched = any(ROOT / file in (ROOT / package).glob(pattern) for pattern in patterns)
        if not matched and not (file.suffix == ".py" and file.parent == package):
            left.append(str(file))
    assert left == []
