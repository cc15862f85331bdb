"""selasticd from its options to its end. Rounds on one thread, the HTTP API in the main one, a clean stop on SIGTERM.

Promise: killed at any point it leaves nothing that the next start does not repair; jobs train on without it.
Limit: one daemon per state directory (a lock file sees to that) and one per database (its lease does: `leader`).
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim.errors import ConfigError, ElasticError

from .api import create_app
from .assembly import Daemon
from .auth import Authenticator
from .check import check
from .claims import address, alone, listening, write_client_file
from .http_server import Server
from .leader import Leader, leading
from .local_socket import bound
from .notify import Notifier
from .operators import Operators
from .settings import Settings, load
from .slurm import CommandClient

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `selasticd`."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
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
    """Run until SIGTERM or SIGINT."""
    Path(settings.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700 if settings.user_mode else 0o755)
    with alone(settings) as lock_file, listening(settings) as listener, bound(settings.listen_socket) as local:
        # Before the store writes anything: who cannot prove callers' identities must not start at all.
        operators = Operators(CommandClient(settings.slurm_conf).operators)
        authenticator = Authenticator(settings, lambda: operators.uids)
        notifier = Notifier()
        waiting = notifier.standing_by
        with leading(settings.database_url, lock_file, settings.lease_s, waiting) as leader:
            _lead(settings, [listener, *filter(None, [local])], (authenticator, operators), leader, notifier)
            lost = leader.lost
        notifier.close()
    log.info("selasticd has stopped")
    return 1 if lost else 0


def _lead(
    settings: Settings,
    listeners: list[socket.socket],
    callers: tuple[Authenticator, Operators],
    leader: Leader,
    notifier: Notifier,
) -> None:
    """Be the daemon, until a signal or the loss of the lease."""
    store, (authenticator, operators) = Store.open(settings.database_url, leader.fence), callers
    client = CommandClient(settings.slurm_conf)
    daemon = Daemon(settings, client, store, confirm=lambda: leader.confirm(store), operators=operators)
    try:
        app = create_app(store, daemon.controller, settings, authenticator)
        for listener in listeners:
            listener.listen(2048)
        url = address(settings, listeners[0])
        path = write_client_file(settings, authenticator.client_values(url))
        log.info("selasticd serves %s (mode %s, clients read %s)", url, settings.mode, path)
        store.add_event(0, "started", "selasticd", {"lease": leader.fence, "url": url}, time.time())
        server = Server(app, daemon, notifier)
        leader.on_lost(server.end)
        daemon.start()
        server.run(sockets=listeners)
    finally:
        notifier.stopping()
        daemon.stop()


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
