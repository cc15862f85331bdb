"""Trainings in containers: another root for the workers, which a word before python enters, or an option of srun's."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from pathlib import Path

from training_job import ROOT, Start

CONTAINER = """#!/bin/sh
# As `apptainer exec IMAGE COMMAND...`: the command sees the image, and of this machine what all images see.
echo "container of $SLURM_JOB_ID" >>{log}
exec unshare --mount --propagation slave sh -c '
    image=$0
    for place in bin lib lib64 usr etc dev proc sys tmp; do
        [ -e "/$place" ] || continue
        mkdir -p "$image/$place"
        mount --rbind "/$place" "$image/$place"
    done
    for part in python:{python} packages:{packages} product:{product}; do
        mkdir -p "$image/image/${{part%%:*}}"
        mount --bind "${{part#*:}}" "$image/image/${{part%%:*}}"
    done
    exec chroot "$image" env -C "$PWD" PYTHONPATH=/image/product/packaging/namespace:/image/packages "$@"
' "$@"
"""
PROLOG = """#!/bin/sh
echo "prolog of $SLURM_JOB_ID" >>{log}
"""


def test_a_training_in_a_container_grows_and_ends_as_any_other(start: Start, tmp_path: Path) -> None:
    """By a Python, torch and shim that are where this machine has none; each srun carries the user's options."""
    image, log = tmp_path / "image", tmp_path / "log"
    image.mkdir()
    places = {"python": sys.base_prefix, "packages": sysconfig.get_path("purelib"), "product": ROOT}
    for name, text in {"container": CONTAINER.format(**places, log=log), "prolog": PROLOG.format(log=log)}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    python = f"{tmp_path}/container {image} /image/python/bin/python3"
    training = start(
        "--gres=gpu:1", words=f"--python={shlex.quote(python)} --srun-options=--task-prolog={tmp_path}/prolog"
    )
    both = (training.id, training.grow().slurm_job_id)
    assert {*log.read_text().splitlines()} == {f"{what} of {one}" for what in ("prolog", "container") for one in both}
    training.slurm("scancel", str(training.id))
    training.comes_to("CANCELLED")
    assert training.saved() == training.trained()
    training.gives_back()
