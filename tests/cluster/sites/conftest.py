"""Fixtures of the tests on a Slurm as sites configure it."""

from __future__ import annotations

from site_cluster import configured_slurm as configured_slurm
from site_cluster import site as site
from site_training import start as start
