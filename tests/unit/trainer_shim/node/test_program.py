"""What runs is the program that the job began with, whatever is edited meanwhile."""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.trainer_shim.node import program


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of copies, and beside it the user's own, which is on the path."""
    for name in ("program", "user"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(program, "_folder", None)
    monkeypatch.syspath_prepend(tmp_path / "user")
    program.keep_in(tmp_path / "program")
    before = set(sys.modules)
    yield tmp_path / "user"
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_is_imported_as_it_was_first(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a package, too; its functions' source is what runs. A file that is as it was is not spoken of."""
    for name in ("beside.py", "pack/__init__.py", "pack/inner.py"):
        (kept / name).parent.mkdir(exist_ok=True)
        (kept / name).write_text("def value():\n    return 1\n")
    names = ("beside", "pack.inner")
    assert [importlib.import_module(name).value() for name in names] == [1, 1]
    assert capsys.readouterr().err == ""
    (kept / "beside.py").write_text("def value()\n")
    (kept / "pack/inner.py").write_text("def value():\n    return 2222\n")
    for name in [name for name in sys.modules if name.split(".")[0] in ("beside", "pack")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    again = [importlib.import_module(name) for name in names]
    assert [module.value() for module in again] == [1, 1]
    assert runpy.run_module("beside")["value"]() == 1  # as `selastic run -m` does
    assert "return 1" in inspect.getsource(again[1].value)
    told = capsys.readouterr().err.splitlines()[:2]
    assert [line.partition(" was edited since this job began")[0] for line in told] == [
        f"selastic: {kept}/beside.py",
        f"selastic: {kept}/pack/inner.py",
    ]


def test_a_file_that_cannot_be_kept_is_what_it_is(kept: Path, tmp_path: Path) -> None:
    """A full disk, a removed folder; and one that was kept outlives its removal."""
    script = kept / "train.py"
    script.write_text("1")
    assert program.source(str(script)) == (b"1", False)
    script.unlink()
    assert program.source(str(script)) == (b"1", True)
    script.write_text("22")
    for copy in (tmp_path / "program").iterdir():
        copy.unlink()
    (tmp_path / "program").rmdir()
    assert program.source(str(script)) == (b"22", False)
    with pytest.raises(FileNotFoundError):
        program.source(str(kept / "nothing.py"))


def test_a_file_is_kept_without_hard_links(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on exFAT, and on CIFS of some servers."""

    def refuse(source: Path, copy: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", refuse)
    (kept / "train.py").write_text("1")
    assert program.source(str(kept / "train.py")) == (b"1", False)
    (kept / "train.py").write_text("22")
    assert program.source(str(kept / "train.py")) == (b"1", True)


def test_what_is_installed_is_not_kept(kept: Path, tmp_path: Path) -> None:
    """Nor the standard library, nor slurm-elastic."""
    for name in ("wave", "slurm_elastic.trainer_shim.numerics.noise_scale"):
        sys.modules.pop(name, None)
        importlib.import_module(name)
    assert not list((tmp_path / "program").iterdir())
