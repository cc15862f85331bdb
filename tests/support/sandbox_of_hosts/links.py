"""What happens to packets between the hosts of a sandbox: delay, loss, either way by itself. Pure, but for one file.

The file is read anew by the switch when it changes, so all of it can be set while the hosts run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

FILE = "links.json"


@dataclass(frozen=True)
class Link:
    """One direction between two hosts."""

    delay_s: float = 0.0
    loss: float = 0.0
    """The share of packets that get lost; 1: nothing arrives."""


CUT = Link(loss=1.0)


@dataclass(frozen=True)
class Links:
    """Every direction between two hosts: those named "n1>n2", "n1>n2@ib0" on one of their networks, and `others`."""

    others: Link = Link()
    named: dict[str, Link] = field(default_factory=dict)

    def between(self, sender: str, receiver: str, interface: str = "") -> Link:
        both = f"{sender}>{receiver}"
        return self.named.get(f"{both}@{interface}") or self.named.get(both, self.others)

    def with_one_way(self, sender: str, receiver: str, link: Link, interface: str = "") -> Links:
        """interface: of the one network that it is about; "" is all of them."""
        return replace(self, named={**self.named, f"{sender}>{receiver}" + (f"@{interface}" * bool(interface)): link})

    def with_both_ways(self, one: str, other: str, link: Link, interface: str = "") -> Links:
        return self.with_one_way(one, other, link, interface).with_one_way(other, one, link, interface)

    def changed(
        self, hosts: list[str], sender: str | None, receiver: str | None, delay_s: float | None, loss: float | None
    ) -> Links:
        """Another delay or loss (None: as it is) from and to these hosts (None: any)."""

        def new(link: Link) -> Link:
            return Link(link.delay_s if delay_s is None else delay_s, link.loss if loss is None else loss)

        if sender is None and receiver is None:
            return Links(new(self.others), {name: new(link) for name, link in self.named.items()})
        links = self
        for one in [sender] if sender else hosts:
            for other in [receiver] if receiver else hosts:
                if one != other:
                    links = links.with_one_way(one, other, new(self.between(one, other)))
        return links

    def apart(self, host: str, hosts: list[str]) -> Links:
        """One host cut off from all these."""
        links = self
        for other in hosts:
            links = links if other == host else links.with_both_ways(host, other, CUT)
        return links


def seconds(text: str) -> float:
    """ "20ms" or "1s"; SandboxError for anything else."""
    number, unit = (text[:-2], 0.001) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise SandboxError(f"delay={text!r} of the sandbox's network is not accepted; accepted: 0s to 10s, as in 20ms.")
    return value


def share(text: str) -> float:
    """ "1%" is 0.01; SandboxError for anything else."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1 or not text.endswith("%"):
        raise SandboxError(f"loss={text!r} of the sandbox's network is not accepted; accepted: 0% to 100%.")
    return value


def write(file: Path, links: Links) -> None:
    """Put it in force."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(json.dumps(asdict(links)))
    new.replace(file)


def read(file: Path) -> Links:
    """What is in force."""
    record = json.loads(file.read_text())
    return Links(Link(**record["others"]), {name: Link(**link) for name, link in record["named"].items()})
