"""selasticd's settings: one TOML file, read once at the start and checked whole before anything else happens.

docs/reference/settings.md and the sample file are printed from this module, so they cannot say something else:

    python -m slurm_elastic.daemon.config.reference --markdown | --sample
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from slurm_elastic.protocol.errors import ConfigError

from ..optimizer.policies import DEFAULT_POLICY, POLICIES
from ..policies import installed
from .user_mode import AUTO
from .user_mode import defaults as user_mode_defaults

log = logging.getLogger(__name__)
DEFAULT_FILE = Path("/etc/slurm-elastic/selasticd.toml")
RELEASES = {"node": "single nodes of a Slurm job too", "job": "whole Slurm jobs only"}
SCRIPT, SMALLEST, PLAN = "script", "smallest", "plan"
FIRST_SIZES = {
    SCRIPT: "what its script asks for, as Slurm by itself",
    SMALLEST: "the smallest size that its request accepts",
    PLAN: "what the optimizer would give it beside the running jobs, by what its program was measured to do",
}
FAIRNESS = {
    "auto": "as `fairshare` where Slurm's own priorities count fair-share (PriorityWeightFairShare above 0), else as"
    " `account`",
    "job": "jobs: who has more elastic jobs gets more",
    "user": "users, each as much",
    "account": "Slurm accounts, each as much, whatever their place in the hierarchy",
    "fairshare": "accounts and their users, by their shares as sshare lists them (RawShares; what was used so far does"
    " not count); where sshare says nothing, as `account`",
}
MODES = ("off", "observe", "review", "act")


def setting(default: Any, accepted: str, read: Callable[[Any], Any], words: Mapping[str, str] | None = None) -> Any:
    """A setting. `accepted`: what it takes, in words; `read`: the value as it is kept, or ValueError; `words`: the
    words that it takes, each with its meaning where the reference explains them one by one."""
    return field(default=default, metadata={"accepted": accepted, "read": read, "words": words or {}})


def number(default: float, low: float, high: float) -> Any:
    """A number between two bounds, both inclusive; a whole one when the default is whole."""
    kind = type(default)

    def read(value: Any) -> float:
        if type(value) not in (int, kind) or not low <= value <= high:
            raise ValueError
        return kind(value)

    return setting(default, f"{'a whole number' if kind is int else 'a number'} from {low:g} to {high:g}", read)


def choice(default: str, *words: str, meanings: Mapping[str, str] | None = None) -> Any:
    """One of several words; `meanings`: in their place words that the reference explains one by one."""
    accepted = meanings or dict.fromkeys(words, "")

    def read(value: Any) -> Any:
        if value not in tuple(accepted):
            raise ValueError
        return value

    return setting(default, ", ".join(accepted), read, accepted)


def policy_name(default: str) -> Any:
    """A policy's name: a built-in one's, or that of one installed beside the daemon."""

    def read(value: Any) -> str:
        if value not in POLICIES and not installed.known(value):
            raise ValueError
        return str(value)

    meanings = {name: policy.summary for name, policy in POLICIES.items()}
    return setting(default, f"{', '.join(meanings)}, or an installed policy's name", read, meanings)


def text(default: str, form: str, accepted: str) -> Any:
    """A text that matches the expression `form`; `accepted` says the same in words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(form, value) is None:
            raise ValueError
        return value

    return setting(default, accepted, read)


def texts(form: str, accepted: str) -> Any:
    """A list of texts that match the expression `form`, empty by default."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(entry, (str, int)) for entry in value):
            raise ValueError
        if not all(re.fullmatch(form, str(entry)) for entry in value):
            raise ValueError
        return tuple(str(entry) for entry in value)

    return setting((), accepted, read)


def flag(value: Any) -> bool:
    """True or false. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError
    return value


_NAMES = (r"[\w.@+-]+", 'a list of names, such as ["gpu", "long"]')
_LIMITS = (r"(user|account):(\*|[\w.@+-]+)=[0-9]{1,7}", 'a list of limits, such as ["user:*=32", "account:lab=128"]')
_SERVICES = (
    r"[a-z_]+=(off|review|act)",
    'a list of NAME=off, NAME=review or NAME=act, such as ["elastic=review"]',
)
_PATH = (r"|/.*", "an absolute path, or nothing")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an admin decides. Times are in seconds."""

    mode: str = choice("review", *MODES)
    """How far selasticd goes. `off`: it only answers questions. `observe`: it also measures. `review`: it also decides
    and explains what it would do. `act`: it does it. Stay with `review` for a day before you choose `act`."""

    services: tuple[str, ...] = texts(*_SERVICES)
    """How far single services of selasticd may go, within `mode`: `off`, `review` (it says what it would do) or `act`.
    `elastic`, the resizes of elastic jobs, goes as far as `mode` where it is not named; any other service is off."""

    listen: str = text("127.0.0.1:6850", r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}", "HOST:PORT, or [IPv6]:PORT")
    """Address that the jobs and the command line reach. Compute nodes must reach it too: give the address of the
    cluster's internal network. `auto:6850` finds the address of this host from which Slurm's nodes are reached. Port 0
    takes a free one. client.json in state_dir has the result."""

    url: str = text("", r"|https?://\S+", "a URL such as http://head.cluster:6850, or nothing")
    """Where clients find the daemon, as written to client.json. Empty: made from `listen`."""

    listen_socket: str = text("", *_PATH)
    """Unix socket for callers on this host, such as /run/slurm-elastic/selasticd.sock. The kernel says who they are, so
    they need no MUNGE. Empty: none."""

    tls_cert: str = text("", *_PATH)
    """Certificate (PEM, with the chain behind it) for HTTPS on `listen`. Empty: plain HTTP. Its name must be the host
    in `url`."""

    tls_key: str = text("", *_PATH)
    """Private key (PEM) of `tls_cert`, readable by the daemon's user alone."""

    tls_ca: str = text("", *_PATH)
    """Certificates (PEM) of the authority that signed `tls_cert`; clients get them in client.json. Empty: clients trust
    what their system trusts."""

    accept_tokens: bool = setting(True, "true or false", flag)
    """Whether jobs whose slurm-elastic is 0.2 may speak by a token, which whoever hears it can use until the daemon is
    started again: only jobs that registered before the daemon was upgraded, or that come by TLS or the Unix socket. The
    next release takes none."""

    state_dir: str = text("/var/lib/slurm-elastic", r"/.*", "an absolute path")
    """Directory of the database and of client.json, owned by the daemon's user, on a local disk."""

    database_url: str = text("", r"|[\w+]+://.*", "an SQLAlchemy URL, or nothing")
    """Where everything is stored. Empty: SQLite, in selastic.db under state_dir. Any SQLAlchemy URL is accepted,
    such as `postgresql+psycopg://selastic@db/selastic`; its driver has to be installed beside the daemon."""

    lease_s: float = number(30.0, 1, 3600)
    """How long selasticd's lease on the database lasts without renewal. Another selasticd on the same database stands
    by, and takes over when the lease has expired."""

    slurm_conf: str = text("", *_PATH)
    """Path of slurm.conf. Empty: the environment's SLURM_CONF, or Slurm's own default."""

    munge_socket: str = text("", *_PATH)
    """Socket of munged. Empty: the one named by AuthInfo in slurm.conf, or MUNGE's own default."""

    admins: tuple[str, ...] = texts(*_NAMES)
    """Users (names or uids) who see and pin everyone's jobs, beside root, Slurm's own user, and whoever is Operator or
    Administrator in Slurm."""

    partitions: tuple[str, ...] = texts(*_NAMES)
    """Partitions whose jobs may be elastic. Empty: all."""

    accounts: tuple[str, ...] = texts(*_NAMES)
    """Accounts whose jobs may be elastic. Empty: all."""

    supervisor_requests: bool = setting(False, "true or false", flag)
    """Whether an elastic request counts that is not in the job's comment but comes from inside the job, as by `selastic
    run --elastic`. Slurm never sees such a one, nor do a site's rules in job_submit.lua. A user's own daemon
    (`selasticd --user`) takes them unless told otherwise."""

    round_interval_s: float = number(10.0, 0.2, 3600)
    """Longest time between two rounds. Each costs Slurm one squeue and one sinfo for the whole cluster."""

    min_round_gap_s: float = number(1.0, 0.05, 600)
    """Shortest time between two rounds, however much happens in between."""

    site_interval_s: float = number(60.0, 1, 86400)
    """How often Slurm's limits of accounts and QOS, its shares, its reservations and its topology are read: up to six
    more commands."""

    policy: str = policy_name(DEFAULT_POLICY)
    """What a plan maximises over all elastic jobs. `auto`: the sum of the logarithms of their progress, which gives up
    some of the total so that no job is left far behind. A job whose request says `until=quality` progresses by samples
    weighed with its measured gradient noise scale (goodput), any other by samples. `log-throughput` and `log-goodput`
    take one measure for all jobs; `throughput` and `goodput` are the plain sums. See docs/explanation/optimizer.md. A
    policy that is installed beside selasticd (docs/how-to/write-a-policy.md) is named like a built-in one."""

    policy_limit_s: float = number(2.0, 0.05, 60)
    """How long a policy that is installed beside selasticd may take in one round. It runs in a process of its own. When
    it takes longer, or gives what is no plan, `auto` plans in its place, and the log and `selastic explain` say so."""

    fairness: str = choice("auto", meanings=FAIRNESS)
    """Between whom a plan is fair. The elastic jobs of one user or account share one weight in each pool, however many
    they are; among them a request's `weight` counts as ever. With one group, or one job of each, nothing changes.
    `selastic explain` says whose share a job's was."""

    shorter_first: float = number(0.5, 0, 1)
    """How far trainings that have less left are preferred, by a job's place in their order: at 0.5 weights are as 1, 3,
    5, 7, ... from the longest to the shortest, from an eighth of the average to twice the average; between groups that
    share by `fairness` it moves nothing. The mean time to completion falls by some 2 to 6 %, not on every workload.
    What is left is known where a script says its epochs or steps; any other job counts as the average. Nearer 1 the
    shortest are preferred more. 0: every job counts alike to its last step."""

    first_size: str = choice(SCRIPT, meanings=FIRST_SIZES)
    """At which size an elastic job starts for which there is no room as its script asks. It grows from there. Another
    size than the script's is never larger, is set in the queue only where its GPUs are free at that moment, and is
    taken back where the job does not start. Where elastic jobs queue, jobs are done earlier in the mean; one job may be
    worse off than if it had waited, and stays small if selasticd ends. Only jobs that have never run and asked for
    their GPUs per node, without a list of nodes, `--exclusive` or an array."""

    cooldown_grow_s: float = number(600.0, 0, 86400)
    """Shortest time between a resize of a job and its next growth, where its pauses are long (see `cooldown_pauses`). A
    resize of its batch alone does not count. Ten minutes keep the cost of a one-minute restart small."""

    cooldown_shrink_s: float = number(120.0, 0, 86400)
    """Shortest time between a resize of a job and its next shrink for another elastic job, where its pauses are long
    (see `cooldown_pauses`). A resize of its batch alone does not count. A shrink for a waiting ordinary job does not
    wait."""

    cooldown_pauses: float = number(10.0, 0, 10000)
    """A job's cooldowns last no longer than this many of its own pauses (their measured mean, or `assumed_pause_s`),
    but a minute at least, or what the two settings above say where that is less. 10: a job that pauses for six seconds
    or less may be resized again after a minute. 0: the full time, whatever a pause costs. A batch that changed alone
    waits for its next change in the same way, by the pauses of such changes."""

    min_gain: float = number(0.05, 0, 10)
    """Least gain for which a size is changed, under any policy in relative gains of one job: 0.05 is as much as one job
    of average progress that trains 5 % faster, whatever its weight. Where some gain what others lose, what counts is
    their gains and losses together, times the share of it that is gained in the end, by weight."""

    awake_gain: float = number(0.0, 0, 1)
    """Least that each further GPU must bring a job, as a share of what each brings at its best size, where Slurm puts
    idle nodes to sleep (SuspendTime): a growth keeps its nodes awake. 0: any growth that pays. 0.5: a job stops growing
    when another GPU brings it less than half of that. What a job has, it keeps."""

    horizon_s: float = number(1800.0, 10, 604800)
    """Time within which a resize must have paid for its pause."""

    assumed_pause_s: float = number(5.0, 0, 3600)
    """Pause of a resize, as long as none of any job has been measured. Then a job that was never resized is expected to
    pause as the resizes of others say, by the size of its last checkpoint."""

    assumed_requeue_s: float = number(120.0, 0, 86400)
    """Pause of a resize by requeue, as long as none of any job has been measured. A requeue ends the job and starts it
    again from its checkpoint. Only jobs whose request says `via=...+requeue` are requeued, and only for sizes that no
    gentler mechanism reaches."""

    companion_wait_s: float = number(60.0, 1, 3600)
    """How long a companion may stay pending before the resize is given up; at least two of Slurm's `bf_interval`, for a
    companion that waits beside others is looked at once in each."""

    companion_by: str = choice("auto", "auto", "salloc", "sbatch")
    """How companions are asked for: by salloc, as an allocation without a script, or by sbatch, with a script that only
    holds the nodes. `auto`: by salloc, and where the site refuses that, by sbatch. Where it refuses that nodes are
    named, too, on those that Slurm chooses."""

    companion_qos: str = text("", r"|[a-z0-9_.@+-]+", "the name of a QOS in small letters, or nothing")
    """QOS that companions are submitted with; empty: their job's. All users whose jobs are elastic must be allowed to
    use it. With PreemptType=preempt/qos, jobs that may preempt it take companions alone. Its limits then hold for
    companions in place of those of their job's QOS."""

    warm_up_s: float = number(300.0, 5, 900)
    """How long the workers on a new companion may take to start and be ready. Without selasticd they have a quarter of
    an hour."""

    failed_backoff_s: float = number(600.0, 0, 86400)
    """How long a job does not grow after a growth that failed or was withdrawn, for example because its companion was
    not granted; it may shrink in that time. A job whose shrink failed is left alone for a tenth of it, and for twice as
    long after each further one that fails; for the rest of it, it gives way to waiting jobs only."""

    resize_taken_s: float = number(60.0, 1, 3600)
    """How long a resize may wait for the job's supervisor to take it, before it is withdrawn."""

    switch_s: float = number(300.0, 1, 86400)
    """How long a job may take from taking a resize, or from the time its companions' workers are ready, to its first
    step at the new size; after a requeue, from its start to that step. Set it longer than the slowest start of any
    training here."""

    release_by: str = choice("node", meanings=RELEASES)
    """What is given back to Slurm. A single node of a job goes to the next one while the Epilog of the first still runs
    there; the nodes of a whole job wait for it. With `job` each companion has one node, and the nodes that a job began
    with stay with it."""

    release_s: float = number(300.0, 1, 86400)
    """How long Slurm may take to free what a resize has given up, before the resize is closed with a note."""

    unused_s: float = number(30.0, 1, 3600)
    """How long a job may hold something that it does not train on and that no resize adds, before it is released."""

    requeue_stop_s: float = number(300.0, 10, 86400)
    """How long the checkpoint before a requeue may take, and then how long the job may take to end."""

    requeue_start_s: float = number(90.0, 5, 86400)
    """How long a requeued job may wait for its new size, before selasticd looks for another size that fits."""

    trip_after: int = number(5, 1, 1000)
    """After Slurm has refused the same kind of action for this many jobs of one user in a row, no more such action is
    tried for that user for a while: in that account, partition, or both, if they have one in common. The same holds
    for everybody after it was refused for this many users, and if neither account nor partition explains it, selasticd
    falls back to `review`."""

    trip_s: float = number(600.0, 1, 86400)
    """How long that lasts. The time doubles, up to a day, whenever the next such action is refused too."""

    max_resizes_per_round: int = number(16, 1, 10000)
    """Most resizes that one round begins. Changes of a batch alone do not count: one round begins 256 of
    them at most."""

    max_resizes_per_job_hour: int = number(12, 1, 3600)
    """Most resizes of one job within an hour. A shrink for a waiting job is not limited by it, nor is a change of its
    batch alone."""

    max_weight: float = number(1.0, 0.001, 1000)
    """Largest `weight` of an elastic request that counts; a larger one counts as this. 1: nobody gets more than
    others by asking for more weight."""

    rigid_reserve_gpus: int = number(0, 0, 1000000)
    """Idle GPUs that elastic jobs leave free in each partition, so that small ordinary jobs start at once."""

    gpu_limits: tuple[str, ...] = texts(*_LIMITS)
    """Most GPUs that the elastic jobs of one user or one account may hold together, in all partitions: for instance
    `["user:*=32", "user:alice=64", "account:lab=128"]`. `*` stands for everyone who is not named. A pin does not get
    around the limit. A job keeps the smallest size that it can have, even above the limit."""

    report_interval_s: float = number(5.0, 0.1, 600)
    """Time between two throughput reports of one job. Four in this time are taken, after a thousand at once; more is
    refused (429)."""

    requests_per_s: float = number(10.0, 0.1, 10000)
    """Most requests per second that one job may make, over ten seconds; more is refused (429). A user, who may have
    many jobs, ten times as many."""

    reports_keep_h: float = number(2.0, 1, 8760)
    """How long single reports are kept; after that there is one record for each hour and configuration. Two hours of
    2000 jobs, one report in 5 s each, take about 400 MB."""

    learn_prior_at: str = text("03:30", r"|([01][0-9]|2[0-3]):[0-5][0-9]", "a time of day such as 03:30, or nothing")
    """Time of day, by this host's clock, at which selasticd learns from the jobs that have ended. What it assumes of a
    job before it is measured then comes from this cluster, and from earlier runs of the same program on the same kind
    of GPU; a program is learned anew within a minute of the end of one of its runs, too. Empty: never; what was learned
    before stays in use, or else the prior that is shipped. See docs/explanation/models.md."""

    history_keep_days: float = number(400.0, 1, 36500)
    """How long ended jobs and the record of actions are kept. The steps of a resize and the decision behind it are
    deleted after a week, advice after 30 days; of jobs that ended the sums of each day stay."""

    user_mode: bool = setting(False, "true or false", flag)
    """Whether the daemon serves only the user who runs it, as `selasticd --user` does: no privilege is needed."""

    def __post_init__(self) -> None:
        if not self.database_url:
            object.__setattr__(self, "database_url", f"sqlite:///{Path(self.state_dir) / 'selastic.db'}")

    @property
    def of_services(self) -> dict[str, str]:
        """How far services may go that are named, by name."""
        return {name: reach for name, _, reach in (one.partition("=") for one in self.services)}

    @property
    def address(self) -> tuple[str | None, int]:
        """Host and port of `listen`; the host None when it is to be found."""
        host, _, port = self.listen.rpartition(":")
        return None if host == AUTO else host.strip("[]"), int(port)


FIELDS = {item.name: item for item in dataclasses.fields(Settings)}
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
        values = _read(Path(path) if path is not None else DEFAULT_FILE)
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
            hint = f"did you mean {close[0]}?" if close else f"accepted: {', '.join(FIELDS)}"
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
