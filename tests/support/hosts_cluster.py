"""A private Slurm of which every node is a host of its own, for the tests in tests/cluster/hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from sandbox_jobs import cancel_all
from sandbox_of_hosts.links import Links
from sandbox_of_hosts.names import KINDS
from sandbox_of_hosts.sandbox import HostsSandbox, HostsSpec, check

from slurm_elastic.protocol.errors import SandboxError

NODES = 3


@contextlib.contextmanager
def hosts_up(
    kind: str, nodes: int = NODES, gpus_per_node: int = 2, extra_slurm_conf: tuple[str, ...] = ()
) -> Iterator[HostsSandbox]:
    """Hosts of nodes and slurmctld's, with 16 CPUs each; this thread has the network of slurmctld's host.

    Skips where no such hosts can be made.
    """
    spec = HostsSpec(nodes=nodes, gpus_per_node=gpus_per_node, hosts=kind, extra_slurm_conf=extra_slurm_conf)
    try:
        check(spec)
    except SandboxError as error:
        pytest.skip(str(error))
    with HostsSandbox.up(spec) as sandbox, sandbox.network():
        yield sandbox


@pytest.fixture(scope="session", params=sorted(KINDS))
def cluster_of_hosts(can_run_slurm: None, request: pytest.FixtureRequest) -> Iterator[HostsSandbox]:
    """One for each kind of names, one at a time."""
    with hosts_up(request.param) as sandbox:
        yield sandbox


@pytest.fixture
def hosts(cluster_of_hosts: HostsSandbox) -> Iterator[HostsSandbox]:
    """The session's hosts, with a network that loses nothing and no job; what a test leaves behind is cancelled."""
    cluster_of_hosts.links = Links()
    cancel_all(cluster_of_hosts)
    yield cluster_of_hosts
    cluster_of_hosts.links = Links()
    cancel_all(cluster_of_hosts)
