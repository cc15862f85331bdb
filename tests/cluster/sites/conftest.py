"""Fixtures of the tests on a Slurm as sites configure it."""

from __future__ import annotations

import pytest
from site_cluster import SiteCluster
from site_cluster import configured_slurm as configured_slurm
from site_cluster import site as site

from slurm_elastic.daemon.sandbox import Sandbox


@pytest.fixture
def trains_on(site: SiteCluster) -> Sandbox:
    return site.sandbox
