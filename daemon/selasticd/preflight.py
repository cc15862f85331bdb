"""`selasticd --check`: try everything that the daemon needs, and change nothing.

Promise: no directory is made, no database created or migrated; each part is tried, even after another has failed.
Limit: what works now may not work later; it does not try whether other hosts reach the port.
"""

import contextlib
import json
import os
import pwd
import socket
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from slurm_elastic.db.migrate import probe
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.errors import ConfigError, ElasticError, SlurmError

from ..api.auth import Authenticator
from ..config import tls
from ..config.user_mode import local_folder
from ..optimizer.policies import POLICIES
from ..policies import installed
from ..services.registry import Services
from ..slurm import CommandClient
from .listeners import public_url, tcp_listener
from .settings import Settings

UNIT_FOLDER = Path("/run/slurm-elastic")
"""RuntimeDirectory of the systemd unit."""


def check(settings: Settings) -> int:
    """Try each part and print the result. 0 when all of them work."""
    tries = {"state": _check_state, "database": _check_database, "identity": _check_identity, "slurm": _check_slurm}
    tries["address"] = _check_address
    if settings.policy in installed.found():
        tries["policy"] = _check_policy
    if settings.services:
        tries["services"] = _check_services
    if settings.listen_socket:
        tries["socket"] = _check_socket
    if settings.tls_cert or settings.tls_ca:
        tries["tls"] = _check_tls
    tries["requests"] = _check_requests
    tries["names"] = _check_names
    tries["companions"] = _check_companions
    if not settings.user_mode:
        tries["rights"] = _check_rights
        tries["epilog"] = _check_epilog
    if settings.companion_qos:
        tries["companion_qos"] = _check_companion_qos
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


def _check_policy(settings: Settings) -> str:
    installed.use(settings.policy, settings.policy_limit_s)
    return f"{settings.policy}: {POLICIES[settings.policy].summary}"


def _check_services(settings: Settings) -> str:
    """How far each goes, and what Slurm lacks for it to act."""
    services, told = Services(settings), []
    site = CommandClient(settings.slurm_conf).site()
    for one in services.every:
        lacks = one.needs(site)
        told.append(f"{one.name} {one.mode(settings, site)}{f' (to act it needs: {lacks})' if lacks else ''}")
    return ", ".join(told)


def _check_database(settings: Settings) -> str:
    folder = Path(settings.state_dir)
    if settings.database_url.startswith(f"sqlite:///{local_folder()}/"):
        folder = local_folder()
    found = probe(settings.database_url, None if folder.exists() else folder)
    return f"{settings.database_url.partition('://')[0]}, {found}"


def _check_identity(settings: Settings) -> str:
    where = Authenticator(settings).munge_socket
    if settings.user_mode:
        return "callers are known by the secret in client.json"
    caller = munge.decode(munge.encode(b"", where), where)
    return f"munged answers, this is uid {caller.uid}"


def _check_address(settings: Settings) -> str:
    if _port_of_daemon_here(settings) == settings.address[1] != 0:
        return f"{settings.listen} is taken by the selasticd that runs with this state_dir, or did"
    with tcp_listener(settings, CommandClient(settings.slurm_conf).node_addresses) as listener:
        return f"clients are told {public_url(settings, listener)}"


def _check_requests(settings: Settings) -> str:
    if not settings.accept_tokens:
        return "jobs prove each request"
    which = "" if settings.tls_cert else " that registered before the upgrade"
    return f"jobs prove each request; those of 0.2{which} send a token (accept_tokens = false once none runs any more)"


def _port_of_daemon_here(settings: Settings) -> int | None:
    try:
        written = json.loads((Path(settings.state_dir) / "client.json").read_bytes())
        return urlsplit(str(written["url"])).port
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _check_socket(settings: Settings) -> str:
    folder = Path(settings.listen_socket).parent
    if folder == UNIT_FOLDER and not folder.exists():
        return f"{folder} is made by systemd"
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        state = f"closed to uid {os.geteuid()}" if folder.exists() else "missing"
        raise ConfigError(
            f"listen_socket={settings.listen_socket} cannot be used: {folder} is {state}; accepted: a path in a "
            f"directory that the daemon may write, such as {UNIT_FOLDER}"
        )
    return settings.listen_socket


def _check_tls(settings: Settings) -> str:
    if not settings.tls_cert:
        tls.client_context(settings)
        return "tls_ca is not used without tls_cert"
    host = settings.address[0] or socket.getfqdn()
    url = settings.url or f"https://{f'[{host}]' if ':' in host else host}"
    tls.try_handshake(settings, url)
    return f"clients of {url} trust {settings.tls_cert}"


def _check_names(settings: Settings) -> str:
    """Users, partitions and accounts that nobody has: a typing error, which nothing else would show."""
    client = CommandClient(settings.slurm_conf)
    limits = [limit.partition("=")[0].partition(":") for limit in settings.gpu_limits]
    limited = {kind: [name for what, _, name in limits if what == kind and name != "*"] for kind in ("user", "account")}
    for key, names in (("admins", settings.admins), ("gpu_limits", limited["user"])):
        known(key, [name for name in names if not name.isdigit()], [user.pw_name for user in pwd.getpwall()], _is_user)
    if settings.partitions:
        known("partitions", settings.partitions, client.snapshot().partitions)
    accounts = [*settings.accounts, *limited["account"]]
    found = frozenset[str]()
    with contextlib.suppress(SlurmError):  # no slurmdbd
        found = client.accounts() if accounts else found
    if accounts and not found:
        return "accounts are not checked: Slurm has no database of them, or hides it from this user"
    for key, names in (("accounts", settings.accounts), ("gpu_limits", limited["account"])):
        known(key, names, found)
    return "those in the settings are known"


def known(key: str, names: Iterable[str], have: Iterable[str], is_known: Callable[[str], bool] | None = None) -> None:
    """Raises ConfigError for the first of these names that is not among those there are."""
    among = sorted(have)
    for name in names:
        if not (is_known(name) if is_known is not None else name in among):
            close = get_close_matches(name, among, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else f"accepted: {', '.join(among[:12]) or 'none, Slurm has none'}"
            )
            raise ConfigError(f"{key}={name} is not known here; {hint}")


def _is_user(name: str) -> bool:
    # Not only those that getpwall lists: a directory service lists nobody.
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def _check_slurm(settings: Settings) -> str:
    snapshot = CommandClient(settings.slurm_conf).snapshot()
    gpus = sum(node.gpus for node in snapshot.nodes.values())
    return f"{len(snapshot.nodes)} nodes, {gpus} GPUs, {len(snapshot.jobs)} jobs"


def _check_epilog(settings: Settings) -> str:
    return about_epilog(settings, CommandClient(settings.slurm_conf).epilog()) or "nothing to set"


def about_epilog(settings: Settings, epilog: str) -> str:
    """What an admin has to know of Slurm's Epilog where selasticd gives back single nodes; empty: nothing."""
    if not epilog or settings.release_by == "job":
        return ""
    return (
        f"{epilog} still runs on a single node that was given back when the next job starts there; "
        "if it cleans GPUs or disks: release_by = job"
    )


def _check_companions(settings: Settings) -> str:
    """Of each form whether Slurm would take it from this user. A refusal is told and is no failure: Slurm may have no
    account for the daemon's user, and a site may have other rules for it."""
    client = CommandClient(settings.slurm_conf)
    nodes = (node for node in client.snapshot().nodes.values() if node.gpus and node.schedulable and node.partitions)
    node = next(
        (node for node in nodes if not settings.partitions or set(node.partitions) & {*settings.partitions}), None
    )
    if node is None:
        return "not tried: no node has GPUs and takes jobs"
    partition = next(name for name in node.partitions if not settings.partitions or name in settings.partitions)
    told = []
    for way, by in (("salloc", "srun"), ("sbatch", "sbatch")):
        named, unnamed = (client.refuses(by, name, partition) for name in (node.name, ""))
        only = f"only where Slurm chooses the nodes ({named})" if named and not unnamed else "can be asked for"
        told.append(f"by {way} {f'refused ({unnamed})' if unnamed and named else only}")
    return f"in partition {partition}, {'; '.join(told)}"


def _check_companion_qos(settings: Settings) -> str:
    known("companion_qos", [settings.companion_qos], CommandClient(settings.slurm_conf).qos_names())
    return f"companions are submitted with {settings.companion_qos}"


def _check_rights(settings: Settings) -> str:
    user = _own_name()
    return rights(user, CommandClient(settings.slurm_conf).may_change(user), settings.mode)


def rights(user: str, accounts: Collection[str] | None, mode: str) -> str:
    """Whose jobs Slurm lets the daemon's user change: those of these accounts; None: all. ConfigError when it is
    nobody's and the daemon is to act."""
    if accounts is None:
        return f"{user} may change all jobs"
    if accounts:
        return f"{user} may change the jobs of {', '.join(sorted(accounts))}, as coordinator"
    none = f"{user} may change nobody else's jobs: it is neither coordinator nor operator (see docs/how-to/install.md)"
    if mode == "act":
        raise ConfigError(none)
    return f"{none}; mode {mode} needs none"


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
