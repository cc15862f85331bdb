"""Fixtures of the tests on several hosts."""

from __future__ import annotations

import pytest
from hosts_cluster import cluster_of_hosts as cluster_of_hosts
from hosts_cluster import hosts as hosts
from sandbox_of_hosts.sandbox import HostsSandbox


@pytest.fixture
def trains_on(hosts: HostsSandbox) -> HostsSandbox:
    return hosts
