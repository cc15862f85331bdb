"""The user games as a process of its own that has given up root for good, and asks with credentials of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.errors import ElasticError

GAMES = pwd.getpwnam("games")


class SecondUser:
    """`get` and `post` of a Client, done by the other process; they raise what was raised there."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.url = self.munge_socket = ""

    def get(self, path: str, **options: Any) -> Any:
        return self._ask("get", path, **options)

    def post(self, path: str, body: bytes = b"", **options: Any) -> Any:
        return self._ask("post", path, body, **options)

    def encode(self, payload: bytes, **options: Any) -> str:
        """A MUNGE credential of that user's."""
        return str(self._ask("encode", payload, **options))

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        self._pipe.send((self.url, self.munge_socket, method, arguments, options))
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def second_user() -> Iterator[SecondUser]:
    """Start it before this process has threads; set its `url` and `munge_socket` before it is asked."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, ours), daemon=True)
    process.start()
    theirs.close()
    try:
        yield SecondUser(ours)
    finally:
        ours.close()
        process.join(10)
        assert process.exitcode == 0, f"the second user's process ended with {process.exitcode}"


def _serve(pipe: Connection, other_end: Connection) -> None:
    other_end.close()  # or the end of the pipe would never be seen
    os.setgroups([])
    os.setgid(GAMES.pw_gid)
    os.setuid(GAMES.pw_uid)
    clients: dict[tuple[str, str], Client] = {}  # each knows what its registrations have given
    with contextlib.suppress(EOFError):
        while True:
            url, munge_socket, method, arguments, options = pipe.recv()
            try:
                if method == "encode":
                    pipe.send(munge.encode(*arguments, munge_socket, **options))
                else:
                    client = clients.setdefault((url, munge_socket), Client(url, munge_socket))
                    pipe.send(getattr(client, method)(*arguments, **options))
            except ElasticError as error:
                pipe.send(error)
