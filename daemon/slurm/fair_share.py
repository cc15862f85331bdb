"""Slurm's tree of shares, from what sshare prints; pure.

Limit: what a user has used so far is left out: Slurm's queue makes up for it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_elastic.protocol.errors import SlurmUnparsable

FIELDS = "Account,User,RawShares"
_PARENT = "parent"
"""In place of shares: it has none of its own."""
_ALIKE = ("its users together", 1.0)
_LEAST = 1e-3
"""What no shares (0) count as, in ratio to others: a job that runs has some weight."""

Path = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ShareTree:
    """The shares of accounts and users, each among those beside it; None: it has none of its own."""

    accounts: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)
    """Account -> the account above it, and its shares."""
    users: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    """(account, user) -> shares."""
    _paths: dict[tuple[str, str], Path] = field(default_factory=dict, compare=False, repr=False)

    def path(self, account: str, user: str) -> Path:
        """From the top down to the user, each node's name and shares.

        An account without shares of its own is passed over: those below it stand beside it. Users without shares of
        their own are one, and so are those that Slurm does not list.
        """
        known = self._paths.get((account, user))
        if known is None:
            known = self._paths[account, user] = self._path(account.lower(), user)
        return known

    def _path(self, account: str, user: str) -> Path:
        own = self.users.get((account, user))
        found = [_ALIKE if own is None else (f"user {user}", max(own, _LEAST))]
        seen = set()
        while account in self.accounts and account not in seen:
            seen.add(account)
            above, shares = self.accounts[account]
            if shares is not None and above:
                found.append((f"account {account}", max(shares, _LEAST)))
            account = above
        if not seen:
            found.append((f"account {account}", 1.0))
        return tuple(reversed(found))


def tree(text: str) -> ShareTree:
    """Of `sshare -a -n -P -o FIELDS`: an account stands one blank further in than the one above it."""
    accounts: dict[str, tuple[str, float | None]] = {}
    users: dict[tuple[str, str], float | None] = {}
    above: list[str] = []
    for line in text.splitlines():
        found = re.fullmatch(r"( *)([^|]+)\|([^|]*)\|(|parent|\d+)", line)
        if found is None or len(found[1]) > len(above):
            raise SlurmUnparsable(f"shares of no known form from sshare: {line[:80]!r}.")
        depth, account, user, shares = len(found[1]), found[2].lower(), found[3], _shares(found[4])
        if user:
            users.setdefault((account, user), shares)  # another row of the same user is for one partition
            continue
        accounts[account] = (above[depth - 1] if depth else "", shares)
        above[depth:] = [account]
    return ShareTree(accounts, users)


def _shares(text: str) -> float | None:
    return float(text) if text and text != _PARENT else None
