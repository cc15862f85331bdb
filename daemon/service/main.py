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
from slurm_elastic.protocol.errors import ConfigError, ElasticError

from ..api.app import create_app
from ..api.auth import Authenticator
from ..api.peer import bound
from ..api.slurm_roles import Operators
from ..api.status_cache import KEEP_S
from ..config.settings import Settings, load
from ..config.user_mode import make_local_folder
from ..slurm import CommandClient, choose
from . import gc_tuning
from .daemon import Daemon
from .endpoint import address, alone, listening, write_client_file
from .hook_socket import beside
from .leader import Leader, leading
from .preflight import check
from .server import Server
from .systemd import Notifier

log = logging.getLogger(__name__)

SWITCH_S = 0.0005
"""How long a round may go on computing once a request waits for its thread's turn; Python's own 5 ms come several times
in one answer."""


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
    if settings.user_mode:
        make_local_folder(settings.database_url)
    client = CommandClient(settings.slurm_conf)
    with (
        alone(settings) as lock_file,
        listening(settings, client.node_addresses) as listener,
        beside(listener) as hooks,
        bound(settings.listen_socket) as local,
    ):
        # Before the store writes anything: who cannot prove callers' identities must not start at all.
        operators = Operators(client.operators, client.private_data)
        authenticator = Authenticator(settings, lambda: operators.uids, lambda: operators.private)
        notifier = Notifier()
        waiting = notifier.standing_by
        with leading(settings.database_url, lock_file, settings.lease_s, waiting) as leader:
            sockets = [each for each in (listener, local, hooks) if each is not None]
            _lead(settings, sockets, (authenticator, operators), leader, notifier)
            lost = leader.lost
        notifier.close()
    log.info("selasticd has stopped")
    return 1 if lost else 0


def _lead(
    settings: Settings,
    sockets: list[socket.socket],
    callers: tuple[Authenticator, Operators],
    leader: Leader,
    notifier: Notifier,
) -> None:
    """Be the daemon, until a signal or the loss of the lease."""
    store, (authenticator, operators) = Store.open(settings.database_url, leader.fence), callers
    client, which = choose(settings.slurm_client, settings.slurm_conf)
    log.info("talks to Slurm through %s", which)
    daemon = Daemon(settings, client, store, confirm=lambda: leader.confirm(store), operators=operators)
    try:
        app = create_app(store, daemon.controller, settings, authenticator)
        for each in sockets:
            if each.type == socket.SOCK_STREAM:
                each.listen(2048)
        url = address(settings, sockets[0])
        path = write_client_file(settings, authenticator.client_values(url))
        log.info("selasticd serves %s (mode %s, clients read %s)", url, settings.mode, path)
        store.add_event(0, "started", "selasticd", {"lease": leader.fence, "url": url}, time.time())
        server = Server(app, daemon, notifier)
        leader.on_lost(server.end)
        gc_tuning.relax()
        sys.setswitchinterval(SWITCH_S)
        daemon.ticker.every(app.board.keep, KEEP_S)
        daemon.start()
        server.run(sockets=sockets)
    finally:
        notifier.stopping()
        daemon.stop()
        client.close()


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
