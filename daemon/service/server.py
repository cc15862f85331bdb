"""The HTTP server of a running daemon. It hears Slurm's hooks too, tells systemd that it lives, and ends long polls.

Limit: `run` belongs in the main thread, the only one that signals can be caught in.
"""

from __future__ import annotations

import socket

from ..api.app import Application
from ..api.http_server import HttpServer, server_config
from .daemon import Daemon
from .listeners import on_datagram
from .systemd import Notifier


class DaemonServer(HttpServer):
    """Serves the API of this daemon."""

    def __init__(self, app: Application, daemon: Daemon, notifier: Notifier) -> None:
        super().__init__(server_config(app, daemon.settings))
        self._daemon, self._notifier = daemon, notifier

    def started_serving(self, others: list[socket.socket]) -> None:
        """Hear hooks; systemd is told that the daemon is ready."""
        for hooks in others:
            on_datagram(hooks, lambda: self._daemon.controller.wake("hook"))
        self._notifier.ready(self._daemon.status())

    def tick(self) -> None:
        """A sign of life from the event loop, as long as rounds end in time."""
        self._daemon.scheduler.check_clock()
        if not self._daemon.hangs:
            self._notifier.alive(self._daemon.status)

    def end(self) -> None:
        """Stop soon, and answer every long poll. From any thread."""
        super().end()
        self._daemon.waiters.close()
