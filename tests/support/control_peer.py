"""A supervisor's end of the control connections of agents and workers that a test makes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from slurm_elastic.protocol import json_lines
from slurm_elastic.protocol.json_lines import Message
from slurm_elastic.trainer_shim.control import handshake

KEY = "key-of-the-tests"
Made = TypeVar("Made")


def accept(listener: socket.socket) -> tuple[socket.socket, Message]:
    """The next caller, once it has proved itself, and its hello."""
    peer, _ = listener.accept()
    return peer, challenged(peer)


def challenged(peer: socket.socket) -> Message:
    """Have a caller prove itself; its hello."""
    challenge = handshake.challenge()
    peer.sendall(json_lines.encode(challenge))
    said = handshake._line(peer)
    assert handshake.proves(KEY, challenge, said)
    peer.sendall(json_lines.encode(handshake.welcome(KEY, said)))
    return said


def meet(listener: socket.socket, make: Callable[[], Made]) -> tuple[Made, socket.socket, Message]:
    """Make what calls and waits until it is answered; with the other end, and what it said."""
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept, listener)
        made = make()
        peer, said = accepted.result(60)
        return made, peer, said
