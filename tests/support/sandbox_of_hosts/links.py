"""What happens to packets between the hosts of a sandbox: delay, loss, either way by itself. Pure, but for one file.

The file is read anew by the switch when it changes, so all of it can be set while the hosts run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

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

    def apart(self, host: str, hosts: list[str]) -> Links:
        """One host cut off from all these."""
        links = self
        for other in hosts:
            links = links if other == host else links.with_both_ways(host, other, CUT)
        return links


def write(file: Path, links: Links) -> None:
    """Put it in force."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(json.dumps(asdict(links)))
    new.replace(file)


def read(file: Path) -> Links:
    """What is in force."""
    record = json.loads(file.read_text())
    return Links(Link(**record["others"]), {name: Link(**link) for name, link in record["named"].items()})
