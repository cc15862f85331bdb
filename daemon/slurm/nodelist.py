"""Slurm's node lists, n[1-4,7], folded and unfolded. Pure."""

import re
import sys
from collections.abc import Iterable
from functools import lru_cache

from ClusterShell.NodeSet import NodeSet, NodeSetParseError

from slurm_elastic.protocol.errors import SlurmUnparsable

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_FOLDED = re.compile(r"[A-Za-z0-9._,\[\]-]*")


def is_node_name(text: str) -> bool:
    """Whether this is the name of a single node, which neither Slurm nor an option parser could read in another way."""
    return _NAME.fullmatch(text) is not None


@lru_cache(maxsize=1 << 14)
def expand(text: str) -> tuple[str, ...]:
    """("n1", "n2", "n4") for "n[1-2,4]"; () for "". Order: by name, then by number, as Slurm has it.

    SlurmUnparsable for anything that is not a node list. Cached, with one object for each name: every list is read
    in every round, and thousands of lists share their nodes.
    """
    if is_node_name(text):  # as most are: a hundredth of the time
        return (sys.intern(text),)
    # ClusterShell knows more (groups, set operators, wildcards) than a node list may say.
    if not _FOLDED.fullmatch(text):
        raise SlurmUnparsable(f"{text[:80]!r} is not a node list such as n[1-4,7].")
    try:
        return tuple(map(sys.intern, NodeSet(text)))
    except NodeSetParseError as error:
        raise SlurmUnparsable(f"{text[:80]!r} is not a node list such as n[1-4,7]: {error}.") from error


def fold(nodes: Iterable[str]) -> str:
    """ "n[1-2,4]" for n1, n2 and n4 in any order; "" for none."""
    return str(NodeSet.fromlist(list(nodes)))
