"""How many connections the API takes, in all and from one peer, so that rounds always find a descriptor.

Limit: a connection counts from where uvicorn knows of it, which with TLS is after the handshake.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16384
KEPT = 2560
"""Descriptors for rounds, the database, and as many connections as wait to be refused (the server's backlog)."""
LEAST_OF_PEER = 64
TELL_S = 600.0


class ConnectionLimits:
    """Connections that are there. On the event loop."""

    def __init__(self, open_files: int) -> None:
        self.in_all = min(MAX_CONNECTIONS, open_files - min(KEPT, open_files // 2))
        self.of_peer = min(self.in_all, max(LEAST_OF_PEER, self.in_all // 8))
        self._peers: Counter[str] = Counter()
        self._count = 0
        self._told: float | None = None

    def admit(self, peer: str) -> bool:
        """Count one more, unless these are too many already. `peer`: an address, or the uid of a local caller."""
        if self._count >= self.in_all or self._peers[peer] >= self.of_peer:
            self._tell(peer)
            return False
        self._count += 1
        self._peers[peer] += 1
        return True

    def release(self, peer: str) -> None:
        """One that was admitted has ended."""
        self._count -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    def _tell(self, peer: str) -> None:
        now = time.monotonic()
        if self._told is None or now - self._told >= TELL_S:
            self._told = now
            log.warning(
                "connections of %s are refused: it has %d of at most %d, all peers have %d of at most %d",
                *(peer, self._peers[peer], self.of_peer, self._count, self.in_all),
            )
