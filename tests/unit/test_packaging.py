"""What a wheel carries."""

from __future__ import annotations

import configparser
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_of_the_tree_is_in_the_distribution() -> None:
    """A sub-package forgotten in setup.cfg would be missing on a user's machine only."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    tops = ("trainer_shim", "daemon", "db")
    inits = [init for top in tops for init in (ROOT / top).rglob("__init__.py")]
    found = {"slurm_elastic." + ".".join(init.parent.relative_to(ROOT).parts) for init in inits}
    assert listed == found


def test_the_shim_and_the_command_line_need_nothing_else() -> None:
    """`pip install slurm-elastic` lives beside the user's training code and must pull in nothing."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = [line for line in config["options"]["install_requires"].splitlines() if line and not line.startswith("#")]
    assert wanted == []
