"""selasticd: wiring and lifecycle. Rounds on one thread, the HTTP API in the main one, a clean stop on SIGTERM.

Promise: killed at any point it leaves nothing that the next start does not repair; jobs train on without it.
Limit: one daemon per state directory (a lock file sees to that) and one per database (its lease does: `leader`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from slurm_elastic.db.migrate import probe
from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim import munge
from slurm_elastic.trainer_shim.errors import ConfigError, ElasticError, StoreError

from .api import create_app
from .auth import Authenticator
from .bell import Bell
from .controller import DaemonController, Jobs
from .leader import Leader, leading
from .local_socket import PeerProtocol, bound
from .notify import Notifier, stalled
from .operators import Operators
from .registry import Registry
from .resize.bounds import Bounds
from .rounds import Rounds
from .settings import Settings, load
from .slurm import CommandClient
from .slurm.types import SlurmClient
from .ticker import Ticker

log = logging.getLogger(__name__)

TIDY_S = 3600.0
"""Seconds between two clean-ups of the database."""
KEEP_ALIVE_S = 75
"""How long a connection may lie idle: longer than supervisors are silent."""
STOP_S = 5
"""How long requests under way may take when the daemon stops."""


class Daemon:
    """Everything of one running daemon, wired; `start` begins the rounds, `stop` ends all."""

    def __init__(
        self,
        settings: Settings,
        client: SlurmClient,
        store: Store,
        bounds: Bounds | None = None,
        confirm: Callable[[], object] = lambda: None,
        operators: Operators | None = None,
    ) -> None:
        """confirm: raises unless this daemon may act at this moment; asked before each act."""
        self.settings, self.store = settings, store
        self.operators = operators
        self._tidied = -TIDY_S
        self._progressed = time.monotonic()
        self.bell = Bell()
        self.jobs = Jobs(client, confirm=confirm)
        self.registry = Registry(store, settings)
        self.rounds = Rounds(self.jobs, store, settings, self.registry, self.bell, bounds=bounds)
        self.ticker = Ticker(self._work, settings.round_interval_s, settings.min_round_gap_s)
        self.controller = DaemonController(store, self.jobs, self.rounds, self.registry, self.bell, self.ticker.wake)

    def _work(self) -> None:
        if self.rounds.run():
            self.ticker.wake()  # what it changed is seen by the next one
        self._progressed = time.monotonic()
        if self.operators is not None:
            self.operators.look()
        if time.monotonic() - self._tidied >= TIDY_S:
            self._tidied = time.monotonic()
            self.tidy(time.time())

    @property
    def hangs(self) -> bool:
        """No round has ended for longer than a round can take."""
        since = time.monotonic() - self._progressed
        return self.settings.mode != "off" and stalled(since, self.settings.round_interval_s)

    def status(self) -> str:
        """How it goes, in a line for `systemctl status`."""
        return f"mode {self.rounds.mode}; {self.rounds.trouble or 'rounds are well'}"

    def tidy(self, now: float) -> None:
        """Roll old reports up and forget what is older than the settings keep."""
        try:
            self.store.roll_up(now - self.settings.reports_keep_h * 3600)
            self.store.prune(now - self.settings.history_keep_days * 86400)
        except StoreError as error:
            log.warning("old records are kept for now: %s", error)

    def start(self) -> None:
        """Rounds begin; `off` has none."""
        self._progressed = time.monotonic()
        if self.settings.mode == "off":
            return
        if self.settings.learn_prior_at:
            priors = self.rounds.priors
            self.ticker.daily(priors.learn, self.settings.learn_prior_at, soon=priors.due())
        self.ticker.start()

    def stop(self) -> None:
        """Let waiting supervisors go, finish the round under way, close the store."""
        self.bell.close()
        self.ticker.stop()
        self.store.close()


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
    with _alone(settings) as lock_file, _listening(settings) as listener, bound(settings.listen_socket) as local:
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
        server = _Server(app, daemon, notifier)
        leader.on_lost(server.end)
        daemon.start()
        server.run(sockets=listeners)
    finally:
        notifier.stopping()
        daemon.stop()


def server_config(app: Any, settings: Settings) -> uvicorn.Config:
    """How the API is served."""
    return uvicorn.Config(
        app,
        http=PeerProtocol,
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


class _Server(uvicorn.Server):
    """uvicorn with our signals: the first asks for a clean stop, the second for a quick one."""

    def __init__(self, app: Any, daemon: Daemon, notifier: Notifier) -> None:
        super().__init__(server_config(app, daemon.settings))
        self._daemon, self._notifier = daemon, notifier

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the Unix socket too, without TLS; tell systemd once requests are answered."""
        sockets = sockets or []
        await super().startup([each for each in sockets if each.family != socket.AF_UNIX])
        for each in sockets:
            if each.family == socket.AF_UNIX and self.started:
                server = await asyncio.get_running_loop().create_unix_server(self._protocol, sock=each, backlog=2048)
                self.servers.append(server)
        self._notifier.ready(self._daemon.status())

    def _protocol(self) -> PeerProtocol:
        return PeerProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's own turn, ten times a second: a sign of life from the event loop, while rounds end in time."""
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


def check(settings: Settings) -> int:
    """`--check`: try everything that the daemon needs, change nothing of it. 0 when all is well."""
    tries = {"state": _check_state, "database": _check_database, "identity": _check_identity, "slurm": _check_slurm}
    good = True
    print(f"settings: mode {settings.mode}, listens on {settings.listen}")
    for name, attempt in tries.items():
        try:
            print(f"{name}: {attempt(settings)}")
        except ElasticError as error:
            good = False
            print(f"{name}: {error}")
    print("all is well" if good else "selasticd would not work as it is")
    return 0 if good else 1


def _check_state(settings: Settings) -> str:
    folder = Path(settings.state_dir)
    try:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
    except OSError as error:
        raise ConfigError(f"state_dir={folder} cannot be reached ({error.strerror})") from None
    if not nearest.is_dir():
        raise ConfigError(f"state_dir={folder} cannot be used: {nearest} is not a directory")
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigError(f"state_dir={folder} cannot be written: {nearest} is closed to uid {os.geteuid()}")
    return f"{folder}, {'ready' if nearest == folder else 'will be created'}"


def _check_database(settings: Settings) -> str:
    folder = Path(settings.state_dir)
    found = probe(settings.database_url, None if folder.exists() else folder)
    return f"{settings.database_url.partition('://')[0]}, {found}"


def _check_identity(settings: Settings) -> str:
    Authenticator(settings)
    if settings.user_mode:
        return "callers are known by the secret in client.json"
    where = settings.munge_socket or (munge.default_socket(settings.slurm_conf) if settings.slurm_conf else None)
    caller = munge.decode(munge.encode(b"", where), where)
    return f"munged answers, this is uid {caller.uid}"


def _check_slurm(settings: Settings) -> str:
    snapshot = CommandClient(settings.slurm_conf).snapshot()
    gpus = sum(node.gpus for node in snapshot.nodes.values())
    return f"{len(snapshot.nodes)} nodes, {gpus} GPUs, {len(snapshot.jobs)} jobs"


@contextlib.contextmanager
def _alone(settings: Settings) -> Iterator[Path]:
    """Hold the state directory's lock, a file whose path is given; ConfigError when another daemon does."""
    path = Path(settings.state_dir) / "selasticd.lock"
    try:
        handle = path.open("a")
    except OSError as error:
        raise ConfigError(f"state_dir={settings.state_dir} cannot be written ({error.strerror})") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another selasticd runs on state_dir={settings.state_dir}; stop it first") from None
        yield path


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The API's socket, bound before anything else, so that a port in use is said at once. A standby does not listen:
    who calls it is refused, and not kept waiting."""
    host, port = settings.address
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            yield listener
    except OSError as error:
        raise ConfigError(f"listen={settings.listen} cannot be used ({error.strerror or error})") from None


def address(settings: Settings, listener: socket.socket) -> str:
    """The URL that clients are told."""
    if settings.url:
        return settings.url
    scheme = "https" if settings.tls_cert else "http"
    host, port = settings.address[0], listener.getsockname()[1]
    if host in ("", "0.0.0.0", "::"):
        host = socket.getfqdn()
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def write_client_file(settings: Settings, values: dict[str, Any]) -> Path:
    """Write client.json, whole or not at all; only its owner may read one that holds a secret."""
    path = Path(settings.state_dir) / "client.json"
    fresh = path.with_suffix(f".{os.getpid()}")
    mode = 0o600 if "secret" in values else 0o644
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w") as file:
        json.dump(values, file)
        file.write("\n")
    fresh.chmod(mode)
    fresh.replace(path)
    return path


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
