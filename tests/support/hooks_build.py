"""Builds the Slurm hooks for tests, once per session, from the sources as they are."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "slurm_hooks"
CHECKER = ROOT / "tests" / "unit" / "slurm_hooks" / "check_request.c"
CFLAGS = "-O1 -Werror"
WARNINGS = "-std=gnu11 -Wall -Wextra -Wshadow -Wformat=2 -D_FORTIFY_SOURCE=2 -fstack-protector-strong"


@functools.cache
def build() -> Path:
    """A directory with spank_elastic.so and check_request; compiler and headers are installed first where missing."""
    programs = ("cc", "make", "lua5.1", "lua5.4")
    if not (all(map(shutil.which, programs)) and Path("/usr/include/slurm/spank.h").exists()):
        install = ROOT / "packaging" / "install-build-deps-debian"
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.fail(
                f"the hooks need a C compiler, Slurm's headers and Lua: run {install.relative_to(ROOT)}", pytrace=False
            )
        subprocess.run([install], check=True, timeout=280)
    target = Path(tempfile.mkdtemp(prefix="selastic-hooks-"))
    target.chmod(0o755)
    plugin = ["make", "-C", HOOKS, f"BUILD={target}", f"CFLAGS={CFLAGS}"]
    checker = ["cc", *CFLAGS.split(), *WARNINGS.split(), "-I", HOOKS, "-o", target / "check_request"]
    for command in (plugin, [*checker, CHECKER, HOOKS / "elastic_request.c"]):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    return target


def remove_build() -> None:
    """Take away what `build` made; does nothing when nothing was built."""
    if build.cache_info().currsize:
        shutil.rmtree(build(), ignore_errors=True)
        build.cache_clear()
