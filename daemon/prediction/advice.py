"""The answer to `selastic advise`: what a program that was measured here is best submitted with.

It is the cheapest before a deadline, the fastest within a budget, or the best value, each with its probability:

    p = mean over the waits of  T((ln limit - ln run) / doubt)       limit: what deadline and budget leave to the run

T is the normal distribution where a size was measured, else Student's t with two degrees of freedom and twice the
doubt: what was never measured is further off, now and then, than the model says (chosen by `make bench-advise`).
Promise: speeds, batches and doubt are those that a plan goes by; partitions take the job's user and account; nothing
less probable than is asked for comes before what is as probable. Limit: one kind of GPU an answer, none on which the
program never ran; CPUs, memory, preemption and what a job gains by growing do not count.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median_low

from slurm_elastic.db.rows import JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.predict import Advice, Choice
from slurm_elastic.protocol.answers.record import made_from
from slurm_elastic.protocol.api.routes import AdviseQuery
from slurm_elastic.protocol.errors import NotFound, RequestError
from slurm_elastic.protocol.request import ElasticRequest
from slurm_elastic.protocol.text.times import elapsed

from ..models import cache
from ..optimizer.models import goodput
from ..optimizer.models.costs import QUANTILE
from ..planner.running.state import trusted_noise
from ..reports.common import Viewer, visible_job
from ..slurm.model import Job, Node, Snapshot
from ..slurm.site import PartitionRules, Site
from .sizes import Measured, PredictionInputs, best_batches, listed, model_of, reference, request_of

SHOWN, FORETOLD, WEIGHED = 5, 16, 60
"""Of the choices so many are shown, of so many the starts are foretold, and so many are weighed for a measurement."""
LONGER, SPARE_S, LONGEST_S = 3.0, 600.0, 3e8
"""A time limit is so many standard deviations beyond the run, and so much longer; what takes ten years is no choice."""
WHEN_MEASURED, WORTH, HARDLY = 0.03, 1.02, 0.1
"""Relative 1-sigma of a run's time once it was measured; how much better an answer a measurement has to bring; below
which probability choices go by how late or too dear they are."""


@dataclass(frozen=True, slots=True)
class Option:
    """One thing to ask for. run_s: how long the training will run there, as probably shorter as longer; doubt: relative
    1-sigma of that; measured: whether just this was, on this kind of GPU; price: of an hour of all its GPUs; waits_s:
    each as probable as the others."""

    partition: str
    gpu_type: str
    gpus: int
    nodes: int
    batch: int
    run_s: float
    doubt: float
    measured: bool
    price: float
    waits_s: tuple[float, ...] = (0.0,)

    @property
    def cost(self) -> float:
        return self.price * self.run_s / 3600.0

    @property
    def until_s(self) -> float:
        return median_low(self.waits_s) + self.run_s


@dataclass(frozen=True, slots=True)
class Aim:
    """What is wanted, in seconds from now; confidence: the probability with which it is to be kept. Without a deadline
    and a budget: the best value, the least product of cost and time."""

    deadline_s: float = math.inf
    budget: float = math.inf
    confidence: float = 0.95


def probability(option: Option, aim: Aim) -> float:
    """That it is done by the deadline, within the budget; 1 without either."""
    paid = 3600.0 * aim.budget / option.price if option.price else math.inf
    return fmean(_within(option, min(paid, aim.deadline_s - wait)) for wait in option.waits_s)


def _within(option: Option, limit_s: float) -> float:
    if limit_s <= 0 or limit_s == math.inf:
        return float(limit_s > 0)
    z = math.log(limit_s / option.run_s) / max(1e-6, option.doubt)
    return NormalDist().cdf(z) if option.measured else 0.5 + z / (2.0 * math.sqrt(8.0 + z * z))


def ranked(options: Sequence[Option], aim: Aim) -> list[tuple[Option, float]]:
    """The best first, each with its probability: those as probable as is asked for, then the most probable."""

    def place(one: tuple[Option, float]) -> tuple[float, ...]:
        option, likely = one
        if likely < HARDLY:
            return 0.0, max(option.until_s / aim.deadline_s, option.cost / aim.budget)
        return -min(likely, aim.confidence), *_measure(option, aim)

    return sorted([(option, probability(option, aim)) for option in options], key=place)


def _measure(option: Option, aim: Aim) -> tuple[float, ...]:
    """The less the better."""
    if aim.deadline_s < math.inf:
        return option.cost, option.until_s, option.gpus
    return option.until_s * (option.cost if aim.budget == math.inf else 1.0), option.cost, option.gpus


def worth_measuring(options: Sequence[Option], aim: Aim) -> Option | None:
    """The size not measured whose measurement would change the answer by the most, were it as fast or as slow as one in
    ten will be; None: none would."""
    first, found = ranked(options, aim)[0][0], None
    best = 0.0, WORTH
    for tried in options:
        for turn in (-QUANTILE, QUANTILE) if not tried.measured else ():
            size = tried.gpu_type, tried.gpus
            then = [one if (one.gpu_type, one.gpus) != size else _measured(one, turn) for one in options]
            new, likely = ranked(then, aim)[0]
            old = then[options.index(first)]
            missed = round(min(likely, aim.confidence) - min(probability(old, aim), aim.confidence), 2)
            gain = missed, _measure(old, aim)[0] / max(1e-12, _measure(new, aim)[0])
            if new is not old and gain > best and (missed or likely >= aim.confidence):
                best, found = gain, tried
    return found


def _measured(option: Option, turn: float) -> Option:
    return replace(option, run_s=option.run_s * math.exp(turn * option.doubt), doubt=WHEN_MEASURED, measured=True)


Waits = dict[tuple[str, str, int], Sequence[float]]
"""Seconds, by partition, kind of GPU and number; none: it does not start there."""


def with_waits(options: Sequence[Option], waits: Waits) -> list[Option]:
    """With the waits of the nearest size of the kind in the partition of which they are known; without what does not
    start."""
    found = []
    for one in options:
        own = [at for at in waits if at[:2] == (one.partition, one.gpu_type) and (waits[at] or at[2] == one.gpus)]
        near = min(own, key=lambda at: abs(math.log(at[2] / one.gpus)), default=None)
        if near is None or waits[near]:
            found.append(one if near is None else replace(one, waits_s=tuple(waits[near])))
    return found


@dataclass(frozen=True, slots=True)
class Ground:
    """What can be asked for, as of the last round. prices: the setting gpu_prices; would_start: when one more job, that
    runs for so long, would start (None: the service queue is off), moments as probable as each other, none: never."""

    snapshot: Snapshot
    site: Site
    prices: Sequence[str] = ()
    would_start: Callable[[Job, float], tuple[float, ...]] | None = None

    def rules(self, partition: str) -> PartitionRules:
        return self.site.partitions.get(partition, PartitionRules())

    def price(self, partition: str, kind: str, factor: float) -> float:
        return self.site.gpu_price(self.prices, partition, kind, factor)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question, about a training of so many samples."""

    ground: Ground
    job: JobRow
    query: AdviseQuery
    aim: Aim
    samples: int
    now: float

    def options(self, measured: Measured, basis: PredictionInputs, kind: str) -> list[Option]:
        """All that can be asked for on one kind of GPU."""
        model, site, found = model_of(measured, basis), self.ground.site, list[Option]()
        sizes = listed(measured.request, {row.gpus for row in measured.rows}, 0, 0)
        seen, noise = {(row.gpus, row.nodes, row.batch) for row in measured.rows}, trusted_noise(measured.rows)
        nodes = [node for node in self.ground.snapshot.nodes.values() if node.gpu_type == kind and node.schedulable]
        for name in sorted({name for node in nodes for name in node.partitions}):
            rules, price = self.ground.rules(name), self.ground.price(name, kind, self.query.factor)
            if rules.closed(self.job.user, site.listed_as(self.job.account), (self.query.qos or "").lower()):
                continue
            placed = _placed(sizes, [node for node in nodes if name in node.partitions], rules)
            batches = best_batches(measured, model, placed, basis)
            points = [(size, placed[size], batches[size]) for size in placed]
            for at, speed, doubt in zip(points, model.throughputs(points), model.sigmas(points), strict=True):
                quality = measured.request.until == "quality"
                worth = goodput.efficiency(at[2], measured.reference_batch, noise) if quality else 1.0
                run_s = self.samples / speed / worth
                if run_s <= min(rules.max_time_s, LONGEST_S):
                    found.append(Option(name, kind, *at, run_s, doubt, at in seen, price * at[0]))
        return found

    def waits(self, options: Sequence[Option]) -> Waits:
        """By the forecast where there is one, else as whoever asks was told by Slurm."""
        found: Waits = {}
        if (foretell := self.ground.would_start) is None:
            for word in self.query.waits.split(",") if self.query.waits else ():
                if not (told := re.fullmatch(r"([^/]+)/([^/]*)/([1-9][0-9]{0,5})/([0-9]{0,9})", word, re.ASCII)):
                    raise RequestError(f"waits={word} is not accepted; accepted: PARTITION/TYPE/GPUS/SECONDS,...")
                found[told[1], told[2], int(told[3])] = [float(told[4])] if told[4] else ()
            return found
        for one, _ in ranked(options, self.aim)[:FORETOLD]:
            like = Job(0, "PENDING", self.job.user, self.job.uid, partition=one.partition, num_nodes=one.nodes,
                       gpus=one.gpus, gpus_per_node=one.gpus // one.nodes, submit_time=self.now)  # fmt: skip
            found[one.partition, one.gpu_type, one.gpus] = [max(0.0, at - self.now) for at in foretell(like, one.run_s)]
        return found

    def notes(self, shown: Sequence[tuple[Option, float]]) -> list[str]:
        """What cost and order go by."""
        aim, billed = self.aim, any(rules.billing for rules in self.ground.site.partitions.values())
        price = "Slurm's billing of the GPUs (TRESBillingWeights)" if billed else "GPU-hours: nothing says their price"
        price += f", times {self.query.factor:g} (UsageFactor)" if self.query.factor != 1.0 else ""
        best = "fastest within the budget" if aim.deadline_s == math.inf else "cheapest that is in time"
        order = f"first is the {best}, with P >= {aim.confidence:.0%}"
        if aim.deadline_s == aim.budget == math.inf:
            order = "first is the best value, the least product of cost and time"
        elif shown[0][1] < aim.confidence:
            order = f"NOTHING keeps to that with P >= {aim.confidence:.0%}: first is what comes nearest"
        known = self.ground.snapshot.partitions.values()
        weak = {one.name for one in known if one.preempt_mode != "OFF" and one.tier < max(two.tier for two in known)}
        names = sorted(weak & {one.partition for one, _ in shown})
        return [
            f"COST: {'the prices of gpu_prices' if self.ground.prices else price}; each choice is of one kind of GPU",
            order,
            *(f"Slurm may preempt jobs in {name}, which P does not count" for name in names),
        ]

    def choice(self, option: Option, said: float, request: ElasticRequest) -> Choice:
        """With the lines for a script. Smaller than advised the job would not be done in time."""
        wide, longer = math.exp(QUANTILE * option.doubt), math.exp(LONGER * min(option.doubt, 1.0))
        limit_s = min(option.run_s * longer + SPARE_S, self.ground.rules(option.partition).max_time_s)
        each = f"{option.gpu_type}:" * bool(option.gpu_type) + str(option.gpus // option.nodes)
        script = (
            f"#SBATCH --partition={option.partition}{f' --qos={self.query.qos}' if self.query.qos else ''}",
            f"#SBATCH --nodes={option.nodes} --gres=gpu:{each} --ntasks-per-node=1"
            f" --time={elapsed(60 * math.ceil(limit_s / 60))}",
            f"#SBATCH --comment={replace(request, min_gpus=option.gpus).text()}",
        )
        return made_from(
            Choice, option,
            wait_s=option.until_s - option.run_s, run_low_s=option.run_s / wide, run_high_s=option.run_s * wide,
            end=self.now + option.until_s, probability=said, basis="measured" if option.measured else "model",
            script=script,
        )  # fmt: skip


Basis = Callable[[int, str | None], PredictionInputs]
"""What predictions of a job go by; on a named kind of GPU."""


Rated = list[tuple[Option, float]]
"""The best first, each with its probability."""


def weigh(
    store: Store,
    basis_of: Basis,
    ground: Ground,
    job: JobRow,
    query: AdviseQuery,
    now: float,
    request: ElasticRequest | None = None,
) -> tuple[_Asked, Rated, dict[str, ElasticRequest], list[str]]:
    """All that a program can be submitted with, as asked, with the request of each kind of GPU, and notes. request: of
    whose sizes; None: of the runs measured. Raises NotFound and RequestError, with one sentence."""
    name, own = store.programs.of(job.job_id) or ("", "")
    deadline_s = math.inf if query.deadline is None else query.deadline - now
    if deadline_s <= 0:
        raise NotFound(f"deadline={query.deadline:.0f} has passed; accepted: a time after {now:.0f}")
    aim = Aim(deadline_s, query.budget or math.inf, query.confidence / 100)
    asked = _Asked(ground, job, query, aim, query.samples or _samples(store, job), now)
    options, requests, notes = list[Option](), dict[str, ElasticRequest](), [f"the training: {asked.samples} samples"]
    for kind, run in {**(store.programs.youngest_runs(name) if name else {}), own: job.job_id}.items():
        rows = [row for row in store.reports.observations(run) if cache.believed(row)]
        if rows:
            requests[kind] = request or request_of(store.jobs.get(run) or job)
            measured = Measured(requests[kind], rows, None, reference(store, run, rows))
            options += asked.options(measured, basis_of(run, kind), kind)
            sizes = ", ".join(map(str, sorted({row.gpus for row in rows})))
            notes.append(f"measured{' on ' * bool(kind)}{kind}: {sizes} GPUs, {sum(row.count for row in rows)} reports")
    other = {node.gpu_type for node in ground.snapshot.nodes.values() if node.gpus} - requests.keys()
    notes += [f"no choice, as it never ran there: GPUs of type {', '.join(sorted(other))}"] if other else []
    options = with_waits(options, asked.waits(options))
    if not options:
        raise NotFound(f"job {job.job_id} accepts nothing that was measured and can start ({'; '.join(notes[1:])})")
    return asked, ranked(options, aim), requests, notes


def advise(
    store: Store, basis_of: Basis, ground: Ground, job_id: int, viewer: Viewer, query: AdviseQuery, now: float
) -> Advice:
    """Raises NotFound, NotAllowed and RequestError, each with one sentence."""
    asked, rated, requests, notes = weigh(store, basis_of, ground, visible_job(store, job_id, viewer), query, now)
    shown, more = rated[:SHOWN], worth_measuring([one for one, _ in rated[:WEIGHED]], asked.aim)
    notes += asked.notes(shown)
    if more is not None:
        notes.append(f"one more measurement could change the answer: {more.gpus} GPUs in {more.partition}")
    choices = tuple(asked.choice(one, said, requests[one.gpu_type]) for one, said in shown)
    foretold = ground.would_start is not None
    return Advice(now=now, foretold=foretold, notes=tuple(notes), choices=choices)


def _samples(store: Store, job: JobRow) -> int:
    """How long the training of a job is."""
    last = store.reports.last(job.job_id)
    if last is not None and last.samples_left:
        return last.samples + last.samples_left
    done = last.samples if last is not None else sum(row.samples for row in store.allocations.rows(job.job_id))
    if job.state == "COMPLETED" and done:
        return done
    raise NotFound(f"job {job.job_id} has not said how long its training is; accepted: --samples=N, or a completed job")


def _placed(sizes: Sequence[int], nodes: Sequence[Node], rules: PartitionRules) -> dict[int, int]:
    """Of these sizes those that such nodes hold, as many GPUs on each, with the fewest nodes."""
    found, most = dict[int, int](), max((node.gpus for node in nodes), default=0)
    for size in sizes if most else ():
        for count in range(-(-size // most), min(size, len(nodes)) + 1):
            even = size % count == 0 and not rules.unfit(count)
            if even and sum(node.gpus >= size // count for node in nodes) >= count:
                found[size] = count
                break
    return found
