"""Files of somebody else, played by an account without rights; skipped where tests may not change owners."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.protocol.own_files import foreign, foreign_below, make_own

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


def test_ones_own_directory_is_nobody_elses(tmp_path: Path) -> None:
    """Nor is one that is missing, or root's."""
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a/b").touch(0o644)
    assert foreign_below(tmp_path / "a") == "" == foreign(tmp_path / "none") == foreign(Path("/usr"))


@as_root
def test_another_users_file_is_found_however_deep(tmp_path: Path) -> None:
    """With who it belongs to."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").touch()
    os.chown(tmp_path / "a/b/c", NOBODY, NOBODY)
    assert foreign_below(tmp_path / "a") == f"{tmp_path}/a/b/c belongs to uid {NOBODY}"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_what_others_can_write_is_theirs_until_it_is_taken_back(tmp_path: Path, mode: int) -> None:
    """A group's umask, and an open directory."""
    tmp_path.chmod(mode)
    assert foreign(tmp_path) == f"can be written by others (mode {mode:o})"
    make_own(tmp_path)
    assert foreign(tmp_path) == ""


def test_a_link_is_no_file_of_ones_own(tmp_path: Path) -> None:
    """It may lead anywhere tomorrow."""
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert foreign(tmp_path / "link") == "is a symbolic link"
