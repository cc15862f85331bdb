"""Which listeners hear nothing more once a world is complete."""

from __future__ import annotations

import socket
import sys

import pytest

from slurm_elastic.trainer_shim.world.listeners import deaf_when_made


@pytest.mark.skipif(sys.platform != "linux", reason="sockets have filters on Linux")
@pytest.mark.parametrize("only_gloo", [True, False])
def test_listeners_of_nccl_hear_on(only_gloo: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as before:
        with deaf_when_made(lambda: only_gloo):
            made = socket.create_server(("127.0.0.1", 0))
        with made:
            for listener, hears in ((before, True), (made, not only_gloo)):
                with socket.socket() as stranger:
                    stranger.settimeout(5 if hears else 0.2)
                    heard = stranger.connect_ex(listener.getsockname()) == 0
                assert heard is hears
