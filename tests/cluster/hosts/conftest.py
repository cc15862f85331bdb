"""Fixtures of the tests on several hosts."""

from __future__ import annotations

from host_training import start as start
from hosts_cluster import cluster_of_hosts as cluster_of_hosts
from hosts_cluster import hosts as hosts
