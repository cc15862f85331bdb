"""selasticd's settings: one TOML file, read once at the start and checked whole before anything else happens.

Each folder has a table of what it needs; here they are put together. docs/reference/settings.md and the sample file are
printed from them, so they cannot say something else:

    python -m slurm_elastic.daemon.selasticd.reference --markdown | --sample
"""

import dataclasses
import inspect
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from slurm_elastic.protocol.errors import ConfigError

from ..api.settings import ServerSettings
from ..config.fields import Modes, number, text
from ..config.tls import TlsSettings
from ..config.user_mode import defaults as user_mode_defaults
from ..mechanisms.settings import ResizeSettings
from ..models.settings import ModelSettings
from ..planner.settings import PlannerSettings
from ..rounds.settings import JobSettings, RoundSettings
from ..slurm.settings import SlurmSettings

log = logging.getLogger(__name__)
DEFAULT_FILE = Path("/etc/slurm-elastic/selasticd.toml")


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings:
    table: ClassVar[str] = "database"

    state_dir: str = text("/var/lib/slurm-elastic", r"/.*", "an absolute path")
    """Directory of the database and of client.json, owned by the daemon's user, on a local disk."""

    database_url: str = text("", r"|[\w+]+://.*", "an SQLAlchemy URL, or nothing")
    """Where everything is stored. Empty: SQLite, in selastic.db under state_dir. Any SQLAlchemy URL is accepted,
    such as `postgresql+psycopg://selastic@db/selastic`; its driver has to be installed beside the daemon."""

    lease_s: float = number(30.0, 1, 3600)
    """How long selasticd's lease on the database lasts without renewal. Another selasticd on the same database stands
    by, and takes over when the lease has expired."""

    reports_keep_h: float = number(2.0, 1, 8760)
    """How long single reports are kept; after that there is one record for each hour and configuration. Two hours of
    2000 jobs, one report in 5 s each, take about 400 MB."""

    history_keep_days: float = number(400.0, 1, 36500)
    """How long ended jobs and the record of actions are kept. The steps of a resize and the decision behind it are
    deleted after a week, advice after 30 days; of jobs that ended the sums of each day stay."""

    def __post_init__(self) -> None:
        if not self.database_url:
            object.__setattr__(self, "database_url", f"sqlite:///{Path(self.state_dir) / 'selastic.db'}")


@dataclass(frozen=True, kw_only=True)
class Settings(RoundSettings, ServerSettings, DatabaseSettings):
    """What an admin decides. Times are in seconds."""


TABLES: tuple[type[Any], ...] = (
    *(Modes, ServerSettings, TlsSettings, DatabaseSettings, SlurmSettings, JobSettings, RoundSettings),
    *(PlannerSettings, ResizeSettings, ModelSettings),
)
"""In the order in which they are shown; the first is the top of the file."""
TABLE_OF = {name: kind.table for kind in TABLES for name in inspect.get_annotations(kind) if name != "table"}
"""The table of each setting, by name; "" for the top of the file."""
_EVERY = {item.name: item for item in dataclasses.fields(Settings)}
FIELDS = {name: _EVERY[name] for name in TABLE_OF}
RENAMED = {"order_taken_s": "resize_taken_s"}
"""Settings of slurm-elastic 0.1.0 that have another name since 0.2.0."""
GONE = {"slurm_client": "selasticd always talks to Slurm through Slurm's commands"}
"""Settings of slurm-elastic 0.2.0 that are no more, with what holds in their place."""
OLD_WORDS = {("mode", "advise"): "review"}
"""What settings of 0.2 accepted by another word; the next release does not."""


def load(path: str | Path | None = None, *, user_mode: bool = False) -> Settings:
    """Read a settings file; None: the default one, which may be missing.

    With `user_mode` a file is not looked for, and the defaults are a user's own: a free port where compute nodes reach
    this host, state under ~/.slurm-elastic, jobs may act. Raises ConfigError with one sentence.
    """
    values: dict[str, Any] = {}
    if path is not None or (not user_mode and DEFAULT_FILE.exists()):
        values = _without_tables(_read(Path(path) if path is not None else DEFAULT_FILE))
    if "user_mode" in values:
        raise ConfigError("user_mode is not a setting of the file; accepted: selasticd --user")
    if user_mode:
        values = {**user_mode_defaults(), **values, "user_mode": True}
    return check(values)


def check(values: Mapping[str, Any]) -> Settings:
    """Build the settings from plain values. Raises ConfigError naming the setting, the value and what is accepted."""
    for key in values:
        if key in RENAMED:
            raise ConfigError(f"setting {key} of slurm-elastic 0.1.0 is {RENAMED[key]} since 0.2.0: rename it")
        if key in GONE:
            raise ConfigError(f"setting {key} of slurm-elastic 0.2 is no more: {GONE[key]}; remove it")
        if key not in FIELDS:
            close = get_close_matches(key, FIELDS, n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"accepted: {', '.join(n for n in FIELDS if n != 'user_mode')}"
            )
            raise ConfigError(f"setting {key} is not known; {hint}")
    settings = Settings(**{key: _value(key, value) for key, value in values.items()})
    if settings.address[1] > 65535:
        raise ConfigError(f"listen={settings.listen} is not accepted; accepted: a port from 0 to 65535")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        given, missing = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise ConfigError(f"{missing} is missing; accepted: both it and {given}, or neither")
    if settings.min_round_gap_s > settings.round_interval_s:
        raise ConfigError(
            f"min_round_gap_s={settings.min_round_gap_s:g} is above round_interval_s={settings.round_interval_s:g}; "
            "accepted: at most that"
        )
    return settings


def _without_tables(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file by their names. One line in the log names those that have a table and stand in none."""
    values, old = dict[str, Any](), dict[str, list[str]]()
    tables = {name: content.get(name) for name in TABLE_OF.values() if name}
    for key, value in content.items():
        if key in tables and not isinstance(value, dict):
            raise ConfigError(f"{key}={value!r} is not accepted; accepted: a table, [{key}]")
        if key not in tables and isinstance(value, dict) and key not in FIELDS:
            close = get_close_matches(key, tables, n=1)
            hint = f"did you mean [{close[0]}]?" if close else f"accepted: {', '.join(f'[{name}]' for name in tables)}"
            raise ConfigError(f"table [{key}] is not known; {hint}")
        if key not in tables:
            values[key] = value
            if TABLE_OF.get(key):
                old.setdefault(TABLE_OF[key], []).append(key)
    for table, inside in tables.items():
        for key, value in (inside or {}).items():
            own = TABLE_OF.get(key, table)
            if own != table:
                place = f"in [{own}]" if own else "above the first table"
                raise ConfigError(f"setting {key} stands in [{table}]; accepted: {place}")
            if key in values:
                raise ConfigError(
                    f"setting {key} stands in [{table}] and above the first table; accepted: in [{table}]"
                )
            values[key] = value
    if old:
        places = "; ".join(f"[{table}] {', '.join(keys)}" for table, keys in old.items())
        log.warning(
            "settings have their place in tables now; the next release does not know these elsewhere: %s", places
        )
    return values


def by_table(settings: Settings) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, table in TABLE_OF.items():
        found.setdefault(table, {})[name] = getattr(settings, name)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"settings file {path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path} is not TOML ({error})") from None


def _value(key: str, value: Any) -> Any:
    rules = FIELDS[key].metadata
    if isinstance(value, str) and (key, value) in OLD_WORDS:
        new = OLD_WORDS[key, value]
        log.warning('%s = "%s" is "%s" now; the next release does not know the old word', key, value, new)
        value = new
    try:
        return rules["read"](value)
    except ValueError:
        close = get_close_matches(str(value), rules["words"], n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(f"{key}={value!r} is not accepted{hint}; accepted: {rules['accepted']}") from None
