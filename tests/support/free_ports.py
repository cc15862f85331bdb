"""Ports for servers that tests stop and start again."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port that no connection of anybody takes while its server is away: below those that the kernel gives out."""
    while True:
        port = random.randrange(12_000, 18_000)
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
