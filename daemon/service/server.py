"""The HTTP server of a running daemon. It also reads the datagrams of Slurm's hooks, tells systemd that it is alive,
and ends long polls.

Limit: `run` belongs in the main thread, the only one that signals can be caught in.
"""

from __future__ import annotations

import socket

from slurm_elastic.db.lease import Lease

from ..api.app import Application
from ..api.http_server import HttpServer, server_config
from .daemon import Daemon
from .listeners import on_datagram
from .systemd import Notifier


class DaemonServer(HttpServer):
    """Serves the API of this daemon."""

    def __init__(self, app: Application, daemon: Daemon, notifier: Notifier, lease: Lease) -> None:
        super().__init__(server_config(app, daemon.settings))
        self._daemon, self._notifier, self._lease = daemon, notifier, lease

    def started_serving(self, others: list[socket.socket]) -> None:
        """Read the hooks' datagrams; tell systemd that the daemon is ready."""
        for hooks in others:
            on_datagram(hooks, lambda: self._daemon.controller.wake("hook"))
        self._notifier.ready(self._daemon.status())

    def tick(self) -> None:
        """A sign of life from the event loop, as long as rounds end in time; the end, once the lease is lost."""
        if self._lease.lost:
            self.end()
        self._daemon.scheduler.check_clock()
        if not self._daemon.hangs:
            self._notifier.alive(self._daemon.status)

    def end(self) -> None:
        """Stop soon, and answer every long poll. From any thread."""
        super().end()
        self._daemon.waiters.close()
