"""The cluster that a killing campaign runs on: who may fail and how, how jobs reach selasticd, what can happen between.

A campaign is the same on one host and on several. Limits: on one host a node that dies takes its processes and its
slurmd, not its memory or disks; on several it takes all that the host has, but what is shared stays reachable.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kill_targets
from sandbox_of_hosts.links import CUT, Link, Links
from sandbox_of_hosts.names import HEAD, address
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

EVERYWHERE = ("selasticd", "supervisor", "worker", "agent", "slurmctld", "slurmdbd", "node", "base")
LASTING = ("flap", "maintenance")
"""With these: what takes minutes to come right, for Slurm makes a job wait whose node failed. In soaks only."""
NETWORK = ("cut", "partition", "one-way", "delay")
"""What happens to packets, and not to processes."""
Heal = Callable[[], Any]


class Ground:
    """All nodes on one host: packets can be kept from selasticd only, by a route that leads nowhere."""

    filled = 5
    """Nodes taken by a job that stays; the campaign happens on the others."""
    listen = "0.0.0.0"
    """Where its selasticd listens."""
    stays_s: tuple[float, ...] = (0.0, 0.0, 0.3, 1.5)
    """How long what was killed may stay dead."""

    def __init__(self, sandbox: Sandbox, chance: random.Random) -> None:
        self.sandbox, self.chance = sandbox, chance
        self.kinds = EVERYWHERE + self.network_kinds() + (LASTING if "SELASTIC_SOAK_ROUNDS" in os.environ else ())
        self.gpus = sandbox.spec.gpus_per_node
        self.free = tuple(f"n{number}" for number in range(self.filled + 1, sandbox.spec.nodes + 1))
        """The nodes that the campaign happens on."""

    def network_kinds(self) -> tuple[str, ...]:
        if _route("add", "127.77.255.254"):
            _route("del", "127.77.255.254")
            return ("cut",)
        print("routes cannot be changed here: the network is not cut", flush=True)
        return ()

    def choose(self, kinds: tuple[str, ...], most: int) -> list[str]:
        """What happens in one round."""
        return self.chance.sample(kinds, k=min(most, len(kinds)))

    def way(self, job: int) -> str:
        """The address at which this job finds selasticd."""
        return f"127.77.{self.chance.randrange(1, 250)}.{job % 250 + 1}"

    def disturb(self, kind: str, way: str) -> Heal | None:
        """No packet reaches this address of selasticd any more: new connections fail, those that are open hear nothing.

        Healed, packets flow again; what waits to be sent again is sent again."""
        return (lambda: _route("del", way)) if kind == "cut" and _route("add", way) else None

    def alive(self, node: str) -> bool:
        return bool(self.sandbox.daemons.pid(f"slurmd-{node}"))

    def kill_node(self, node: str) -> None:
        """A node dies: its slurmd, its steps' managers and all that runs in them, at once. Slurm hears of it as a
        health check would tell it, for slurmctld itself waits SlurmdTimeout (minutes) before it calls a silent node
        down."""
        self.power_off(node)
        self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=campaign"])

    def power_off(self, node: str) -> None:
        end_processes(self.sandbox, node)

    def heal_node(self, node: str) -> None:
        """The node boots again."""
        # Not before its slurmctld has ended what ran there: a node that comes back resumed would keep its lost jobs.
        self.power_on(node)
        self.sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
        self.sandbox.start_daemon(f"slurmd-{node}")

    def power_on(self, node: str) -> None:
        self.sandbox.daemons.start(f"slurmd-{node}")


def end_processes(sandbox: Sandbox, node: str) -> None:
    """A node's slurmd, its steps' managers and all that runs in them end at once."""
    kill_targets.kill(sandbox.daemons.pid(f"slurmd-{node}"))

    def nothing_left() -> bool:
        # Killed again at each look: a step may just have been on its way.
        here = _step_managers(sandbox, node)
        here += [one.pid for one in kill_targets.processes(sandbox) if one.node == node]
        kill_targets.kill(*here)
        return not here

    wait_until(nothing_left, 60, f"nothing runs on {node}", every=0.01)


class Hosts(Ground):
    """Every node on a host of its own: any two may be cut off from each other, both ways or one, or be far apart."""

    filled = 1
    listen = address(HEAD)
    stays_s = (0.3, 1.5, 6.0, 15.0, 45.0)
    rounds = 0

    def network_kinds(self) -> tuple[str, ...]:
        return ("partition", "one-way", "delay")

    def choose(self, kinds: tuple[str, ...], most: int) -> list[str]:
        """In each round something happens to packets, each kind of it in turn."""
        network, others = [[kind for kind in kinds if (kind in NETWORK) == wanted] for wanted in (True, False)]
        self.rounds += 1
        chosen = [network[self.rounds % len(network)]] if network else []
        return chosen + super().choose(tuple(others), most - len(chosen))

    def way(self, job: int) -> str:
        return address(HEAD)

    def disturb(self, kind: str, way: str) -> Heal | None:
        """Between a host and another one, or all others."""
        everybody = [HEAD, *self.free]
        one = self.chance.choice(everybody)
        others = [host for host in everybody if host != one]
        others = self.chance.choice([others, [self.chance.choice(others)]])
        self.sandbox.links = disturbed(self.sandbox.links, kind, one, others, self.chance.random() < 0.5)
        print(f"  {kind}: {one} and {', '.join(others)}", flush=True)
        return lambda: setattr(self.sandbox, "links", Links())

    def power_off(self, node: str) -> None:
        self.sandbox.daemons.stop(f"host-{node}")

    def power_on(self, node: str) -> None:
        self.sandbox.start_host(node)


def disturbed(links: Links, kind: str, one: str, others: list[str], outwards: bool) -> Links:
    """These links with a host cut off from others (partition), one way (from it, or to it), or far away (delay)."""
    for other in others:
        if kind == "one-way":
            links = links.with_one_way(*((one, other) if outwards else (other, one)), CUT)
        else:
            links = links.with_both_ways(one, other, CUT if kind == "partition" else Link(0.2, 0.02))
    return links


def _route(verb: str, where: str) -> bool:
    command = ["ip", "route", verb, "blackhole", f"{where}/32", "table", "local"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _step_managers(sandbox: Sandbox, node: str) -> list[int]:
    """The slurmstepds of a node, those without a process of the job included: what has the log of its slurmd open."""
    log, found = sandbox.dir / "log" / f"slurmd-{node}.log", []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "comm").read_text().strip() == "slurmstepd":
                found += [int(path.name) for one in (path / "fd").iterdir() if one.readlink() == log][:1]
        except OSError:
            continue  # it has ended
    return found
