"""What a plan is to reach, and how often jobs are moved for it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..config.fields import Modes, choice, number, setting, texts
from ..mechanisms.settings import ResizeSettings
from ..optimizer.policies import DEFAULT_POLICY, POLICIES
from ..policies import installed

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
_LIMITS = (r"(user|account):(\*|[\w.@+-]+)=[0-9]{1,7}", 'a list of limits, such as ["user:*=32", "account:lab=128"]')


def policy_name(default: str) -> Any:
    """A policy's name: a built-in one's, or that of one installed beside the daemon."""

    def read(value: Any) -> str:
        if value not in POLICIES and not installed.known(value):
            raise ValueError
        return str(value)

    meanings = {name: policy.summary for name, policy in POLICIES.items()}
    return setting(default, f"{', '.join(meanings)}, or an installed policy's name", read, meanings)


@dataclass(frozen=True, kw_only=True)
class PlannerSettings(ResizeSettings, Modes):
    table: ClassVar[str] = "planner"

    policy: str = policy_name(DEFAULT_POLICY)
    """What a plan maximises over all elastic jobs. `auto`: the sum of the logarithms of their progress, which gives up
    some of the total so that no job is left far behind. A job whose request says `until=quality` progresses by samples
    weighed with its measured gradient noise scale (goodput), any other by samples. `log-throughput` and `log-goodput`
    take one measure for all jobs; `throughput` and `goodput` are the plain sums. See docs/explanation/optimizer.md. A
    policy that is installed beside selasticd (docs/how-to/write-a-policy.md) is named like a built-in one."""

    policy_limit_s: float = number(2.0, 0.05, 60)
    """How long a policy that is installed beside selasticd may take in one round. When it takes longer, or gives
    what is no plan, `auto` plans in its place, and the log and `selastic explain` say so."""

    fairness: str = choice("auto", meanings=FAIRNESS)
    """Between whom a plan is fair. The elastic jobs of one user or account share one weight in each pool, however many
    they are; among them a request's `weight` counts as ever. With one group, or one job of each, nothing changes.
    `selastic explain` says whose share a job's was."""

    shorter_first: float = number(0.5, 0, 1)
    """How far trainings that have less left are preferred, by a job's place in their order: at 0.5 weights are as 1, 3,
    5, 7, ... from the longest to the shortest, from an eighth of the average to twice the average; between groups that
    share by `fairness` it moves nothing. Under policies of logarithms alone, and only where the middle one of a pool's
    jobs would still train for 20 minutes on an equal share of GPUs, fully from 40 on: among shorter trainings moves and
    lower efficiency make everyone later. What is left is known where a script says its epochs or steps; any other job
    counts as the average. Nearer 1 the shortest are preferred more. 0: every job counts alike to its last step."""

    deadline_weight: float = number(4.0, 1, 1000)
    """Most that a `deadline=` in an elastic request multiplies its job's weight by, and divides it by: one that falls
    behind gets more, one that is ahead gives. Where `fairness` divides between groups, what a job gets beyond its share
    comes from its own group, or from jobs that are ahead. 1: deadlines move nothing."""

    first_size: str = choice(SMALLEST, meanings=FIRST_SIZES)
    """At which size an elastic job starts that Slurm does not start at once as its script asks, since elastic jobs have
    to make room for it, or cannot. It grows from there. Another size than the script's is never larger, is set in the
    queue only where its GPUs are free at that moment, and is taken back where the job does not start. What a job starts
    with it never gives up, but for whole nodes: with `smallest` the rest goes where it is worth most, and jobs start
    sooner and are done earlier in the mean. One job may be worse off than if it had waited; if selasticd ends, see
    `alone_after_s`. Only jobs that have never run and asked for their GPUs per node, without a list of nodes,
    `--exclusive` or an array."""

    alone_after_s: float = number(600.0, 0, 604800)
    """How long selasticd may be out of reach until a job asks Slurm itself for what it lacks of the size that its
    script asks for: by companions, one request at a time, eight in vain at most. 0: never."""

    queue_weight: int = number(1000, 1, 1_000_000_000)
    """Most that the service `queue` adds to the priority of a waiting job, as its SiteFactor: it counts beside what
    Slurm's own weights (PriorityWeightAge, ...) add. Only where `services` names `queue`."""

    power_buffer: float = number(0.04, 0, 1)
    """Share of a pool's nodes, one at least, that the service `power` keeps awake while they are idle. It wakes nodes
    where a quarter of them is left, or where more than they are will probably be missing."""

    power_per_hour: int = number(120, 1, 100_000)
    """Most nodes that `power` puts to sleep in an hour, and most that it wakes."""

    power_watts: float = number(0.0, 0, 100_000)
    """What an idle node draws more than one that sleeps, for the kWh of `selastic power`. 0: they are not told."""

    max_weight: float = number(1.0, 0.001, 1000)
    """Largest `weight` of an elastic request that counts; a larger one counts as this. 1: nobody gets more than
    others by asking for more weight."""

    gpu_limits: tuple[str, ...] = texts(*_LIMITS)
    """Most GPUs that the elastic jobs of one user or one account may hold together, in all partitions: for instance
    `["user:*=32", "user:alice=64", "account:lab=128"]`. `*` stands for everyone who is not named. A pin does not get
    around the limit. A job keeps the smallest size that it can have, even above the limit."""

    rigid_reserve_gpus: int = number(0, 0, 1000000)
    """Idle GPUs that elastic jobs leave free in each partition, so that small ordinary jobs start at once."""

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

    failed_backoff_s: float = number(600.0, 0, 86400)
    """How long a job does not grow after a growth that failed or was withdrawn, for example because its companion was
    not granted; it may shrink in that time. A job whose shrink failed is left alone for a tenth of it, and for twice as
    long after each further one that fails; for the rest of it, it gives way to waiting jobs only."""

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

    max_resizes_per_round: int = number(16, 1, 10000)
    """Most resizes that one round begins. Changes of a batch alone do not count: one round begins 256 of
    them at most."""

    max_resizes_per_job_hour: int = number(12, 1, 3600)
    """Most resizes of one job within an hour. A shrink for a waiting job is not limited by it, nor is a change of its
    batch alone."""
