"""Where a sandbox may lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.daemon.sandbox.host import make_directory
from slurm_elastic.protocol.errors import SandboxError

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
@pytest.mark.parametrize("theirs", ["an empty directory", "a link", "its parent", "an open parent"])
def test_a_directory_that_somebody_else_made_is_refused(tmp_path: Path, theirs: str) -> None:
    """What runs as root reads its configuration there."""
    parent = tmp_path / "parent"
    parent.mkdir(mode=0o755)
    place, elsewhere = parent / "sandbox", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if theirs == "a link":
        place.symlink_to(elsewhere)
    elif theirs == "an empty directory":
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
    elif theirs == "its parent":
        os.chown(parent, NOBODY, NOBODY)
    else:
        parent.chmod(0o777)
    with pytest.raises(SandboxError, match="dir="):
        make_directory(place)
    assert list(elsewhere.iterdir()) == []


def test_one_in_tmp_and_an_empty_one_of_ones_own_are_taken(tmp_path: Path) -> None:
    """The sticky bit keeps others from renaming it."""
    tmp_path.chmod(0o1777)
    for place in (tmp_path / "new", tmp_path / "empty"):
        if place.name == "empty":
            place.mkdir(mode=0o700)
        make_directory(place)
        assert place.stat().st_mode & 0o7777 == 0o755
