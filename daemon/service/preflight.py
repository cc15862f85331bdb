"""`selasticd --check`: try everything that the daemon needs, and change nothing.

Promise: no directory is made, no database created or migrated; each part is tried, even after another has failed.
Limit: what works now may not work later; it does not try whether other hosts reach the port.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Collection
from pathlib import Path

from slurm_elastic.db.migrate import probe
from slurm_elastic.protocol import munge
from slurm_elastic.protocol.errors import ConfigError, ElasticError, SlurmError

from ..api.auth import Authenticator
from ..config.settings import Settings
from ..config.user_mode import local_folder, own_address_towards
from ..slurm import CommandClient, choose


def check(settings: Settings) -> int:
    """Try each part and print the result. 0 when all of them work."""
    tries = {"state": _check_state, "database": _check_database, "identity": _check_identity, "slurm": _check_slurm}
    if not settings.user_mode:
        tries["rights"] = _check_rights
        tries["epilog"] = _check_epilog
    if settings.companion_qos:
        tries["companion_qos"] = _check_companion_qos
    if settings.address[0] is None:
        tries["address"] = _check_address
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
    return f"Slurm's nodes are reached from {own_address_towards(CommandClient(settings.slurm_conf).node_addresses())}"


def _check_slurm(settings: Settings) -> str:
    client, which = choose(settings.slurm_client, settings.slurm_conf)
    with contextlib.closing(client):
        snapshot = client.snapshot()
    gpus = sum(node.gpus for node in snapshot.nodes.values())
    return f"{len(snapshot.nodes)} nodes, {gpus} GPUs, {len(snapshot.jobs)} jobs, through {which}"


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


def _check_companion_qos(settings: Settings) -> str:
    return companion_qos(settings.companion_qos, CommandClient(settings.slurm_conf).qos_names())


def companion_qos(name: str, known: Collection[str]) -> str:
    """What is said of the QOS of companions. ConfigError when Slurm has no such QOS."""
    if name not in known:
        accepted = ", ".join(sorted(known)) or "none: Slurm has no QOS"
        raise ConfigError(f"companion_qos={name} is no QOS that sacctmgr knows; accepted: {accepted}")
    return f"companions are submitted with {name}"


def _check_rights(settings: Settings) -> str:
    client, user = CommandClient(settings.slurm_conf), _own_name()
    if user in ("root", client.slurm_user()):
        return f"{user} may change all jobs"
    operators, accounts = frozenset[str](), frozenset[str]()
    with contextlib.suppress(SlurmError):  # no slurmdbd: nobody has been granted anything
        operators, accounts = client.operators(), client.coordinated(user)
    return rights(user, user in operators, accounts, settings.mode)


def rights(user: str, operator: bool, accounts: Collection[str], mode: str) -> str:
    """Whose jobs Slurm lets the daemon's user change. ConfigError when it is nobody's and the daemon is to act."""
    if operator:
        return f"{user} may change all jobs, as an operator"
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
