"""selasticd from its options to its end. Rounds on one thread, the HTTP API in the main one, a clean stop on SIGTERM.

Promise: killed at any point it leaves nothing that the next start does not repair; jobs train on without it.
Limit: one daemon per state directory (a lock file sees to that) and one per database (its lease does: `leader`).
"""

import argparse
import contextlib
import gc
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.lease import Lease
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.errors import ConfigError, ElasticError, SlurmError

from ..api.app import Application, create_app
from ..api.auth import Authenticator, SlurmRoles
from ..api.http_server import HttpServer, server_config
from ..api.status_cache import REFRESH_S
from ..config import tls
from ..config.user_mode import make_local_folder
from ..policies import installed
from ..slurm import CommandClient
from ..slurm.slurms_clock import SlurmsClock
from .daemon import Daemon
from .leader import Leader, instance_lock, leading
from .listeners import hook_listener, on_datagram, public_url, tcp_listener, unix_listener, write_client_file
from .preflight import about_epilog, check
from .settings import Settings, load
from .systemd import Notifier, handler

log = logging.getLogger(__name__)

ASKED_S = 10.0
"""How long to wait for what Slurm is asked beside the rounds: its time, and slurm.conf's Epilog."""
SWITCH_S = 0.0005
"""How long a round may go on computing once a request waits for the interpreter. Python's own 5 ms come several times
in one answer."""
GC_THRESHOLDS = (20_000, 10, 20)
"""For gc.set_threshold. With Python's own the collector traverses everything twice in a round of thousands of jobs, and
every answer waits meanwhile: 0.2 s at 5,000 jobs. What the daemon keeps is freed without it; what libraries leave in
cycles is found a little later."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=arguments.log_level.upper(), handlers=[handler()])
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    try:
        settings = load(arguments.config, user_mode=arguments.user)
        if arguments.check:
            return check(settings)
        return serve(settings)
    except ConfigError as error:
        print(f"selasticd: {error}", file=sys.stderr)
        return 2
    except ElasticError as error:
        print(f"selasticd: {error}", file=sys.stderr)
        return 1


def serve(settings: Settings) -> int:
    own_files.raise_limit()
    installed.use(settings.policy, settings.policy_limit_s)
    Path(settings.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700 if settings.user_mode else 0o755)
    if settings.user_mode:
        make_local_folder(settings.database_url)
    client = CommandClient(settings.slurm_conf)
    if settings.tls_cert:
        tls.server_context(settings)
    with (
        instance_lock(settings) as lock_file,
        tcp_listener(settings, client.node_addresses) as listener,
        hook_listener(listener) as hooks,
        unix_listener(settings.listen_socket) as local,
    ):
        # Before the store writes anything: who cannot prove callers' identities must not start at all.
        roles = SlurmRoles(client.operators, client.private_data)
        authenticator = Authenticator(settings, roles)
        notifier = Notifier()
        waiting = notifier.standing_by
        with leading(settings.database_url, lock_file, settings.lease_s, waiting) as leader:
            sockets = [each for each in (listener, local, hooks) if each is not None]
            _lead(settings, sockets, (authenticator, roles), leader, notifier)
            lost = leader.lease.lost
        notifier.close()
    log.info("selasticd has stopped")
    return 1 if lost else 0


def _lead(
    settings: Settings,
    sockets: list[socket.socket],
    callers: tuple[Authenticator, SlurmRoles],
    leader: Leader,
    notifier: Notifier,
) -> None:
    """Be the daemon, until a signal or the loss of the lease."""
    store, (authenticator, roles) = Store.open(settings.database_url, leader.lease.fence), callers
    client = CommandClient(settings.slurm_conf)
    briefly = CommandClient(settings.slurm_conf, timeout_s=ASKED_S)
    slurms_clock = SlurmsClock(briefly.slurms_time)
    slurms_clock.look()
    steady_now.begin(store.newest(), slurms_clock)
    _tell_of_epilog(settings, briefly)
    daemon = Daemon(settings, client, store, lambda: leader.confirm(store), roles, slurms_clock)
    try:
        app = create_app(store, daemon.controller, settings, authenticator)
        for each in sockets:
            if each.type == socket.SOCK_STREAM:
                each.listen(2048)
        url = public_url(settings, sockets[0])
        path = write_client_file(settings, authenticator.client_values(url))
        log.info("selasticd serves %s (mode %s, clients read %s)", url, settings.mode, path)
        store.events.add(0, EventKind.STARTED, "selasticd", {"lease": leader.lease.fence, "url": url}, steady_now())
        server = DaemonServer(app, daemon, notifier, leader.lease)
        tune_interpreter()
        daemon.scheduler.every(app.status_cache.refresh_ahead, REFRESH_S)
        daemon.start()
        server.run(sockets=sockets)
    finally:
        notifier.stopping()
        daemon.stop()


def _tell_of_epilog(settings: Settings, client: CommandClient) -> None:
    """Warn of an Epilog that the next job would not wait for, if slurmctld answers."""
    with contextlib.suppress(SlurmError):
        told = about_epilog(settings, client.epilog())
        if told and settings.mode == "act":
            log.warning("%s", told)


class DaemonServer(HttpServer):
    """Serves the API of this daemon, reads the datagrams of Slurm's hooks and tells systemd that it is alive. `run`
    belongs in the main thread, the only one that signals can be caught in."""

    def __init__(self, app: Application, daemon: Daemon, notifier: Notifier, lease: Lease) -> None:
        super().__init__(server_config(app, daemon.settings))
        self._daemon, self._notifier, self._lease = daemon, notifier, lease

    def started_serving(self, others: list[socket.socket]) -> None:
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


def tune_interpreter() -> None:
    """Let requests wait less for the garbage collector and for a round that computes."""
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)


def parser() -> argparse.ArgumentParser:
    """The options of `selasticd`; selasticd(8) is made from them."""
    made = argparse.ArgumentParser(
        prog="selasticd",
        description="Decides what elastic jobs on a Slurm cluster get, and sees to it. It runs in the foreground "
        "and logs to standard error; SIGTERM and SIGINT stop it once the round under way is done. Jobs train on "
        "without it.",
        epilog="exit status: 0 stopped as asked (with --check: all is well), 1 something that it needs does not work, "
        "2 a setting or an option is not accepted",
    )
    made.add_argument("--config", metavar="FILE", help="settings file (default: /etc/slurm-elastic/selasticd.toml)")
    made.add_argument("--check", action="store_true", help="try settings, database, munge and Slurm, then exit")
    made.add_argument("--user", action="store_true", help="manage only your own jobs; needs no privilege")
    levels = ("debug", "info", "warning", "error")
    made.add_argument("--log-level", choices=levels, default="info", help="default: %(default)s")
    return made


if __name__ == "__main__":
    sys.exit(main())
