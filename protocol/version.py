"""Which slurm-elastic this is: the release, and what exactly lies on the disk of what runs in a job."""

import functools
import hashlib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

IN_A_JOB = ("protocol", "trainer_shim")


@functools.cache
def version() -> str:
    """The release that this process runs. Like `build`, called before somebody can put another one in its place."""
    return version_on_disk()


def version_on_disk() -> str:
    """The installed one, which is looked up anew."""
    try:
        return installed("slurm-elastic")
    except PackageNotFoundError:
        return "(source tree, not installed)"


@functools.cache
def build() -> str:
    """The one that this process runs: call it before somebody can put another one in its place."""
    version()
    return build_on_disk()


def build_on_disk() -> str:
    """The release, and a digest of the sources: a process that starts now runs these."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(file for folder in IN_A_JOB for file in (root / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return f"{version_on_disk()}, build {digest.hexdigest()[:8]}"
