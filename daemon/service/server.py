"""The HTTP server of a daemon: uvicorn on its TCP and Unix sockets, an ear for hooks, signs of life for systemd, a
clean stop on SIGTERM.

Promise: callers on the Unix socket need no TLS; the first signal stops cleanly, the second at once, and neither is
raised again.
Limit: `run` belongs in the main thread, the only one that signals can be caught in.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from ..api.app import Application
from ..api.request_limits import BoundedProtocol
from ..config.settings import Settings
from . import hook_socket
from .daemon import Daemon
from .systemd import Notifier

KEEP_ALIVE_S = 75
"""How long a connection may lie idle: longer than supervisors are silent."""
STOP_S = 5
"""How long requests under way may take when the daemon stops."""


def server_config(app: Application, settings: Settings) -> uvicorn.Config:
    """How the API is served."""
    return uvicorn.Config(
        app,
        http=partial(BoundedProtocol, intake=app.intake),  # type: ignore[arg-type]  # a class is called, no more
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=STOP_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        # Who calls from this host must not say that it is someone else.
        proxy_headers=False,
    )


class Server(uvicorn.Server):
    """uvicorn with our signals: the first asks for a clean stop, the second for a quick one."""

    def __init__(self, app: Application, daemon: Daemon, notifier: Notifier) -> None:
        super().__init__(server_config(app, daemon.settings))
        self._daemon, self._notifier = daemon, notifier

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the Unix socket too, without TLS; hear hooks; tell systemd once requests are answered."""
        sockets = sockets or []
        http = [each for each in sockets if each.type == socket.SOCK_STREAM]
        await super().startup([each for each in http if each.family != socket.AF_UNIX])
        for each in sockets:
            if each.type == socket.SOCK_DGRAM:
                hook_socket.hear(each, lambda: self._daemon.controller.wake("hook"))
            elif each.family == socket.AF_UNIX and self.started:
                server = await asyncio.get_running_loop().create_unix_server(self._protocol, sock=each, backlog=2048)
                self.servers.append(server)
        self._notifier.ready(self._daemon.status())

    def _protocol(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[no-any-return]

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's own turn, ten times a second: a sign of life from the event loop, while rounds end in time."""
        self._daemon.ticker.look()
        if not self._daemon.hangs:
            self._notifier.alive(self._daemon.status)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's own, does not raise the signal again: stopping is a success."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        if self.should_exit:
            self.force_exit = True
        self.end()

    def end(self) -> None:
        """Stop soon. From any thread."""
        self.should_exit = True
        self._daemon.bell.close()
