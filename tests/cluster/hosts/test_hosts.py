"""The hosts of a sandbox are hosts: else the tests on them would prove nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sandbox_command import NAMESPACE, SUPPORT
from sandbox_of_hosts.links import CUT, Link, Links
from sandbox_of_hosts.names import address
from sandbox_of_hosts.sandbox import HostsSandbox
from waiting import wait_until

from slurm_elastic.daemon.sandbox import host, registry

ROOT = Path(__file__).parents[3]
NODES = ["n1", "n2", "n3"]


def resolved(hosts: HostsSandbox, on: str, name: str) -> str:
    """The address of a name, as one host knows it; "" for none."""
    return " ".join(hosts.run(["getent", "ahostsv4", name], on=on).stdout.split()[:1])


def arrives(hosts: HostsSandbox, sender: str, receiver: str) -> bool:
    """Whether a packet goes one way: nothing comes back."""
    listening = ["timeout", "2", "python3", "-c", RECEIVE, address(receiver)]
    with subprocess.Popen(hosts.daemons.on_host(receiver, listening), stdout=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "listening\n"
        hosts.run(["python3", "-c", SEND, address(receiver)], on=sender)
        return receiving.stdout.readline() == "arrived\n"


RECEIVE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 999))
print("listening", flush=True)
s.recv(10)
print("arrived", flush=True)
"""
SEND = "import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'1', (sys.argv[1], 999))"


def test_one_srun_runs_on_all_of_them(hosts: HostsSandbox) -> None:
    """Slurm runs a step over all nodes, whatever the hosts call each other, and each host sees itself alone."""
    home = hosts.home / "seen"
    home.mkdir(mode=0o777, exist_ok=True)
    script = f"cd {home}; hostname >$SLURMD_NODENAME; touch /tmp/$(hostname) /dev/shm/$(hostname); ls /tmp /dev/shm"
    answer = hosts.run(["srun", "-N3", "-l", "sh", "-c", script])
    assert answer.returncode == 0, answer.stderr
    assert {file.name: file.read_text() for file in home.iterdir()} == {name: f"{name}\n" for name in NODES}
    words = answer.stdout.split()
    assert [words.count(name) for name in NODES] == [2, 2, 2], "each once in its own /tmp and /dev/shm"
    kinds = {on: {name: resolved(hosts, on, name) for name in NODES} for on in NODES}
    full = {name: address(name) for name in NODES}
    expected = {
        "full": {on: full for on in NODES},
        "loopback": {on: full | {on: "127.0.1.1"} for on in NODES},
        "private": {on: dict.fromkeys(NODES, "") | {on: full[on]} for on in NODES},
    }
    assert kinds == expected[hosts.spec.hosts]


def test_a_host_that_was_lost_comes_back(hosts: HostsSandbox) -> None:
    """A host ends with all that runs on it; started again, it takes jobs again."""
    hosts.run(["sbatch", "-w", "n2", "--output=/dev/null", "--wrap", "setsid sleep 4321"])

    def sleepers() -> list[str]:
        return hosts.run(["pgrep", "-f", "sleep 432[1]"], on="n2").stdout.split()

    wait_until(sleepers, 60, "the job runs")
    hosts.daemons.stop("host-n2")
    assert not hosts.daemons.pid("slurmd-n2")
    assert not hosts.daemons.pid("munged-n2")
    hosts.start_host("n2")
    assert not sleepers()
    answer = hosts.run(["srun", "-w", "n2", "hostname"])
    assert answer.stdout == "n2\n", answer.stderr


def test_packets_get_lost_and_late_one_way_and_both(hosts: HostsSandbox) -> None:
    """Loss by direction, a partition, and a delay; all of it set while the hosts run."""
    links = Links().with_one_way("n1", "n2", CUT)
    hosts.links = links
    wait_until(lambda: not arrives(hosts, "n1", "n2"), 30, "n1 is cut off from n2")
    wait_until(lambda: arrives(hosts, "n2", "n1"), 30, "n2 reaches n1")
    hosts.links = Links().apart("n3", ["head", *NODES])
    wait_until(lambda: not arrives(hosts, "n3", "head"), 30, "n3 is cut off")
    assert not arrives(hosts, "n1", "n3")
    wait_until(lambda: arrives(hosts, "n1", "n2"), 30, "n1 reaches n2 again")
    hosts.links = Links(Link(delay_s=0.15))
    program = "import socket, sys, time; began = time.monotonic(); socket.create_connection(sys.argv[1:]); "
    words = ["python3", "-c", f"{program}print(time.monotonic() - began)", address("n1")]

    def takes() -> float:
        return float(hosts.run([*words, str(hosts.layout.first_node_port)], on="n2").stdout or 0)

    wait_until(lambda: takes() >= 0.3, 30, "there and back takes twice the delay")


TWO_CHECKS = """
from slurm_elastic.daemon.probe.checks import CHECKS, Bench
from slurm_elastic.daemon.probe.trial import Refused, Trial
from slurm_elastic.daemon.slurm import CommandClient
checks = {name: run for name, _, run in CHECKS}
with Trial("main", "gpu:1") as trial:
    bench = Bench(trial, CommandClient())
    try:
        checks["base"](bench)
        print(*bench.nodes, checks["network"](bench)[0])
    except Refused as refused:
        print(*bench.nodes, "refused:", refused)
"""


def test_a_probe_says_where_hosts_reach_each_other(hosts: HostsSandbox) -> None:
    """By which addresses, and as what they know each other; that a firewall keeps them apart is a refusal."""
    words, env = [sys.executable, "-c", TWO_CHECKS], {"PYTHONPATH": str(ROOT / "packaging/namespace")}
    answer = hosts.run(words, env=env)
    assert answer.returncode == 0, answer.stderr
    first, other, said = answer.stdout.split(" ", 2)
    assert said.startswith(f"{other} reaches {first} at {address(first)}"), answer.stderr
    known = "not known" if hosts.spec.hosts == "private" else address(first)
    assert f"there {first} is {known}" in said
    hosts.links = Links().with_both_ways(first, other, CUT)
    answer = hosts.run(words, env=env)
    assert answer.stdout.startswith(
        f"{first} {other} refused: {other} does not reach {first}: not at {address(first)} "
    )


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m sandbox_of_hosts ...`, as one does by hand."""
    environment = {**os.environ, "PYTHONPATH": f"{NAMESPACE}:{SUPPORT}"}
    line = [sys.executable, "-m", "sandbox_of_hosts", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_the_command_line_brings_hosts_up_and_takes_them_down(can_run_slurm: None) -> None:
    """`up`, `exec` and `network` do what they say, and `down` leaves no process, folder or device."""
    name = f"cli-hosts-{os.getpid()}"
    flag = ("--name", name)
    devices = set(Path("/sys/class/net").iterdir())
    try:
        up = command("up", *flag, "--hosts", "2", "--names", "loopback", "--no-accounting", "--delay", "5ms")
        assert up.returncode == 0, up.stderr
        ran = command("exec", *flag, "--on", "n2", "srun", "-N2", "hostname")
        assert sorted(ran.stdout.split()) == ["n1", "n2"], ran.stderr
        told = command("network", *flag, "--apart", "n1", "--loss", "1%", "--to", "n2")
        assert "others: 5 ms, 0.00% lost" in told.stdout, told.stderr
        assert "head>n2: 5 ms, 1.00% lost" in told.stdout
        assert "n1>n2: 0 ms, 100.00% lost" in told.stdout
        refused = command("network", *flag, "--loss", "5")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
        entry = registry.find(name)
    finally:
        down = command("down", *flag)
    assert down.returncode == 0, down.stderr
    assert entry is not None
    assert not host.members(Path(entry.dir), entry.id)
    assert not Path(entry.dir).exists()
    assert set(Path("/sys/class/net").iterdir()) == devices
