"""Files of somebody else, played by an account without rights; skipped where tests may not change owners."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_elastic.protocol.own_files import TRUSTED, foreign, foreign_below, make_own, make_private

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


@pytest.fixture
def open_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A directory of a file system that shows mode 777 whatever is set: chmod does nothing, or is refused."""
    (tmp_path / "cifs").mkdir()
    (tmp_path / "cifs").chmod(0o777)

    def chmod(path: Path, mode: int) -> None:
        if request.param:
            raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(Path, "chmod", chmod)
    return tmp_path / "cifs"


@pytest.mark.parametrize("open_to_all", [0, errno.EPERM, errno.EOPNOTSUPP], indirect=True)
def test_what_a_file_system_shows_whatever_is_set_is_refused_unless_it_is_trusted(
    open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, and below it alone; a link in it may still lead elsewhere."""
    make_own(open_to_all)
    make_private(open_to_all)
    assert foreign(open_to_all) == "can be written by others (mode 777)"
    (open_to_all.parent / "name").symlink_to(open_to_all)
    for trusted in (open_to_all, open_to_all.parent, f"/none::{open_to_all.parent}/name"):
        monkeypatch.setenv(TRUSTED, str(trusted))
        assert foreign_below(open_to_all) == ""
    (open_to_all / "link").symlink_to("/etc/passwd")
    assert foreign(open_to_all / "link") == "is a symbolic link"
    for trusted in ("", f"{open_to_all}/below", f"{open_to_all}".removesuffix("s"), "/none"):
        monkeypatch.setenv(TRUSTED, trusted)
        assert foreign(open_to_all) == "can be written by others (mode 777)"


@as_root
def test_a_trusted_directory_may_show_another_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount for all users does, or NFS that takes everybody for nobody."""
    os.chown(tmp_path, NOBODY, NOBODY)
    assert foreign(tmp_path) == f"belongs to uid {NOBODY}"
    monkeypatch.setenv(TRUSTED, str(tmp_path))
    assert foreign(tmp_path) == ""
