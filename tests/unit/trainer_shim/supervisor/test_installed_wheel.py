"""The main job from an installed wheel, as users have it: no test elsewhere runs from site-packages."""

from __future__ import annotations

import os
import shutil
import sys
import venv
from pathlib import Path

import torch
from training import TRAIN
from waiting import run

ROOT = Path(__file__).resolve().parents[4]
FILES = ("setup.cfg", "pyproject.toml", "README.md")
FOLDERS = ("protocol", "client", "trainer_shim")


def test_trains_from_the_built_wheel_and_puts_nothing_of_its_own_on_the_path(tmp_path: Path) -> None:
    """`import daemon` in a script is the user's own module, or none; a worker finds the installation all the same."""
    (tmp_path / "tree").mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / "tree")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SELASTIC", "PYTHON"))}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    made = run([*pip, "wheel", *options, str(tmp_path / "tree")])
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    python = tmp_path / "env/bin/python"
    made = run([*pip, "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)])
    assert made.returncode == 0, made.stderr
    (tmp_path / "train.py").write_text(
        "import importlib.util as u, os, slurm_elastic.protocol as p\n"
        "assert u.find_spec('daemon') is None and not os.environ['PYTHONPATH'], os.environ['PYTHONPATH']\n"
        "print('from', p.__path__[0])\n" + TRAIN
    )
    words = ["run", "--nproc", "2", "--no-daemon", "--job-dir", "job", "train.py", "200", "2", "0"]
    done = run([str(python.with_name("selastic")), *words], cwd=tmp_path, env={**env, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and "trained 400 samples" in done.stdout, (done.stdout, done.stderr)
    assert f"from {packages}/slurm_elastic/protocol" in done.stdout, done.stdout
