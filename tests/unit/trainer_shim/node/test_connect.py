"""An agent finds the supervisor, or says where it looked."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from waiting import run

from slurm_elastic.trainer_shim.node.agent import connect

NAMESPACE = Path(__file__).resolve().parents[4] / "packaging" / "namespace"


def trust(sock: socket.socket) -> None:
    """Whoever listens is taken for the supervisor."""


def test_the_address_srun_was_called_on_comes_before_the_name() -> None:
    """On a host that calls itself 127.0.1.1, or that others do not know by name, the name leads astray."""
    with socket.create_server(("127.0.0.1", 0)) as supervisor, socket.create_server(("127.0.1.1", 0)):
        port = supervisor.getsockname()[1]
        env = {"SELASTIC_CONTROL": f"localhost:{port}", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
        (host, _), sock = connect(env, 5, trust)
        sock.close()
        assert host == "127.0.0.1"
        (host, _), sock = connect({**env, "SELASTIC_INTERFACE": "ib0"}, 5, trust)
        sock.close()
        assert host == "localhost", "an interface that was chosen is the only one"
        (host, _), sock = connect({**env, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.9"}, 5, trust)
        sock.close()
        assert host == "localhost", "what does not answer is no obstacle"


def test_an_address_of_ipv6_is_reached() -> None:
    """Bare or in brackets: the port is what follows the last colon."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as supervisor:
        port = supervisor.getsockname()[1]
        for host in ("::1", "[::1]"):
            (found, _), sock = connect({"SELASTIC_CONTROL": f"{host}:{port}", "SELASTIC_INTERFACE": "ib0"}, 5, trust)
            sock.close()
            assert found == "::1"


def test_every_address_that_was_tried_is_named() -> None:
    """An admin who reads it knows which address and port the network does not carry."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    env = {"SELASTIC_CONTROL": f"no-such-host.invalid:{port}", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
    with pytest.raises(OSError, match=rf"^127.0.0.1 port {port} \(.*\), nor no-such-host.invalid port {port} \(.*\)$"):
        connect(env, 0, trust)


def test_an_agent_without_its_supervisor_says_one_sentence(tmp_path: Path) -> None:
    """And no traceback."""
    env = {
        **os.environ,
        "PYTHONPATH": str(NAMESPACE),
        "SELASTIC_CONTROL": "127.0.0.1:9",
        "SELASTIC_AGENT_NODE": "n7",
        "SELASTIC_JOB_DIR": str(tmp_path),
        "SELASTIC_INTERFACE": "lo",
    }
    program = (
        "import sys; from slurm_elastic.trainer_shim.node import agent; agent.CONNECT_S = 0; sys.exit(agent.main())"
    )
    done = run([sys.executable, "-c", program], env=env)
    assert done.returncode == 1
    assert done.stderr == (
        "selastic: node n7 does not reach the supervisor at 127.0.0.1 port 9 (Connection refused); see --interface\n"
    )
