"""Policies: what is maximised, what a move costs, and when nothing moves."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
from one_pool import plan

from slurm_elastic.daemon.optimizer.errors import InfeasiblePlan, PlanInputError
from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.models import goodput
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.daemon.optimizer.plan import ChoiceTables
from slurm_elastic.daemon.optimizer.policies import DEFAULT_POLICY, POLICIES


@dataclass(frozen=True)
class Curve:
    """A model with a given law: throughput = rate(gpus) * batch / (batch + fixed)."""

    rates: tuple[tuple[int, float], ...]
    fixed: float = 0.0
    doubt: float = 0.05
    sizes_seen: tuple[int, ...] = tuple(range(1, 1025))
    jitter: float = 0.01

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return 100.0 * dict(self.rates)[gpus] * batch / (batch + self.fixed * gpus)

    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        return [self.throughput(*point) for point in points]

    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        return [0.0 if gpus in self.sizes_seen else self.doubt for gpus, _ in sizes]


def power(exponent: float, most: int = 64, **more: object) -> Curve:
    """Speedup k ** exponent."""
    return Curve(tuple((k, k**exponent) for k in range(1, most + 1)), **more)  # type: ignore[arg-type]


def job(label: str = "1207", current: int = 0, sizes: tuple[int, ...] = (1, 2, 4, 8), **change: object) -> JobView:
    """A job of one-GPU reference with a concave curve."""
    view = JobView(
        label=label,
        model=power(0.8),
        choices=tuple((k, max(1, k // 4)) for k in sizes),
        batches=lambda k: (256,),
        current_gpus=current,
        current_batch=256 if current else 0,
        reference_gpus=1,
        reference_batch=256,
    )
    return replace(view, **change)  # type: ignore[arg-type]


def sizes(jobs: list[JobView], capacity: int, policy: str = "throughput") -> list[int]:
    return [t.gpus for t in plan(jobs, capacity, policy).targets]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_stays_within_capacity_and_feasible_sizes(policy: str) -> None:
    """On random sets of running and starting jobs each policy's plan is feasible, proven and complete."""
    rng = random.Random(policy)
    for _ in range(40):
        jobs = []
        for i in range(rng.randint(1, 12)):
            current = rng.choice([0, 1, 2, 4])
            accepted = (1, 2, 4, 8) if current else (0, 1, 2, 4, 8)
            jobs.append(job(str(i), current, accepted, model=power(rng.uniform(0.2, 1.1)), weight=rng.uniform(0.5, 3)))
        capacity = sum(j.current_gpus for j in jobs) + rng.randint(0, 20)
        result = plan(jobs, capacity, policy)
        assert sum(t.gpus for t in result.targets) <= capacity
        assert result.bound <= result.value + 1e-9 * abs(result.value)
        for view, target in zip(jobs, result.targets, strict=True):
            assert target.label == view.label
            assert target.gpus in [k for k, _ in view.choices]
            assert target.batch == (256 if target.gpus else 0)


def test_throughput_gives_gpus_to_the_job_that_scales() -> None:
    """The paper's objective: of two jobs the one whose curve is steeper gets the larger share."""
    assert sizes([job("a", model=power(0.95)), job("b", model=power(0.3))], 9) == [8, 1]


def test_weights_shift_the_plan() -> None:
    """A job of weight 3 takes what its equal without weight would have had."""
    assert sizes([job("a"), job("b", weight=3.0)], 9) == [1, 8]


def test_identical_linear_jobs_are_spread_evenly() -> None:
    """Exact ties between linear curves give everybody the same instead of everything to a few."""
    linear = power(1.0)
    assert sizes([job(str(i), model=linear, sizes=tuple(range(1, 33))) for i in range(8)], 32) == [4] * 8


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"static"}))
def test_the_size_that_a_job_began_with_gives_it_no_larger_share(policy: str) -> None:
    """Two equal jobs, one begun on 1 GPU and one on 8, get equal shares: the unit of progress is one GPU for both."""
    jobs = [job(name, sizes=tuple(range(1, 17)), reference_gpus=began) for name, began in (("a", 1), ("b", 8))]
    assert sizes(jobs, 16, policy) == [8, 8]


def test_the_older_job_wins_a_tie() -> None:
    """Of two equal jobs and one GPU to spare, the first submitted gets it, under every objective."""
    for policy in ("throughput", "log-goodput", "harmonic"):
        assert sizes([job("a", sizes=(1, 2)), job("b", sizes=(1, 2))], 3, policy) == [2, 1]


def test_gpus_that_bring_nothing_stay_idle() -> None:
    """A job whose throughput falls beyond 4 GPUs is left at 4 though more are free."""
    model = Curve(((1, 1.0), (2, 1.9), (4, 3.0), (8, 2.5)))
    assert sizes([job(model=model)], 64) == [4]


def test_a_job_grows_as_far_as_each_further_gpu_is_worth_it() -> None:
    """Measured against what a GPU brings it at best; a size that is no better does not hide a good one behind it. What
    it has it keeps, and one that waits starts as it would."""
    curve = Curve(((1, 1.0), (2, 1.9), (4, 1.9), (8, 6.0), (16, 8.0)))
    job_of = partial(job, sizes=(1, 2, 4, 8, 16), model=curve)
    wide = [sizes([job_of(current=1, least_per_gpu=least)], 16)[0] for least in (0.0, 0.2, 0.5, 0.8)]
    assert wide == [16, 16, 8, 2]
    assert sizes([job_of(current=16, least_per_gpu=0.8)], 16) == [16]
    assert sizes([job_of(least_per_gpu=0.8)], 16) == [16]


def test_a_running_job_never_falls_below_its_smallest_size() -> None:
    """Everyone's minimum is kept even when all GPUs would bring more elsewhere."""
    jobs = [job("a", 4, (2, 4)), job("b", 4, (4, 8), model=power(1.0), weight=100.0)]
    assert sizes(jobs, 10) == [2, 8]


def test_infeasible_minima_name_the_job() -> None:
    """When the minima do not fit, the error names the job by its label."""
    with pytest.raises(InfeasiblePlan, match=r"no room for job 1208 \(4 GPUs\)"):
        plan([job("1207", 4, (4,)), job("1208", 0, (4, 8))], 6)


def test_a_frozen_job_keeps_size_and_batch() -> None:
    """A job in cooldown is not moved, whatever could be gained, and is not charged for staying."""
    result = plan([job("a", 1, frozen=True, batches=lambda k: (128, 1024)), job("b", 1)], 64, "throughput")
    assert (result.targets[0].gpus, result.targets[0].batch, result.targets[0].reason) == (1, 256, "keep_frozen")
    assert result.targets[1].gpus == 8


def test_a_move_must_pay_for_its_pause() -> None:
    """A gain of 15 % is taken when the pause is 5 % of the horizon and left when it is 20 %."""
    model = Curve(((1, 1.0), (2, 1.15)))
    cheap, expensive = (job("a", 1, (1, 2), model=model, pause_s=p, horizon_s=600.0) for p in (30.0, 120.0))
    assert sizes([cheap], 2) == [2]
    assert sizes([expensive], 2) == [1]


def test_a_start_is_not_charged() -> None:
    """A job that starts pays no pause: it takes the best size at once."""
    assert sizes([job("a", 0, (1, 2), model=Curve(((1, 1.0), (2, 1.02))), pause_s=300.0)], 2) == [2]


def shaken(rng: random.Random, rates: list[tuple[int, float]]) -> Curve:
    """The curve as measured with 1 % noise."""
    return Curve(tuple((k, r * (1 + rng.gauss(0, 0.01))) for k, r in rates))


def test_noise_does_not_move_jobs() -> None:
    """With 1 % noise on every curve and nothing else changed, at most 1 % of running jobs move per decision."""
    rng = random.Random(7)
    accepted = (1, 2, 4, 8, 16)
    truths = [[(k, k ** rng.uniform(0.4, 0.95)) for k in accepted] for _ in range(100)]

    jobs = [job(str(i), 0, accepted, model=shaken(rng, t)) for i, t in enumerate(truths)]
    moved = 0
    for round_ in range(11):
        targets = plan(jobs, 512, "throughput").targets
        moved += sum(t.gpus != j.current_gpus for t, j in zip(targets, jobs, strict=True)) if round_ else 0
        jobs = [
            replace(j, model=shaken(rng, truth), current_gpus=t.gpus, current_batch=t.batch)
            for j, truth, t in zip(jobs, truths, targets, strict=True)
        ]
    assert moved <= 0.01 * 100 * 10


def test_without_the_term_noise_would_move_many() -> None:
    """The same jitter with a free move does move jobs: the test above can fail."""
    rng = random.Random(7)
    accepted = (1, 2, 4, 8, 16)
    truths = [[(k, k ** rng.uniform(0.4, 0.95)) for k in accepted] for _ in range(100)]
    moved, current = 0, [0] * 100
    for round_ in range(5):
        jobs = [
            job(str(i), k, accepted, model=shaken(rng, t), sigma=0.0, pause_s=0)
            for i, (t, k) in enumerate(zip(truths, current, strict=True))
        ]
        new = sizes(jobs, 512)
        moved += sum(a != b for a, b in zip(new, current, strict=True)) if round_ else 0
        current = new
    assert moved > 0.05 * 100 * 4


def test_the_batch_follows_the_size() -> None:
    """With a fixed cost per step, a larger size takes the larger batch; fixed-batch holds the reference."""
    view = job(model=power(0.9, fixed=16.0), batches=lambda k: (256, 512, 1024))
    elastic, fixed = (plan([view], 8, p).targets[0] for p in ("throughput", "fixed-batch"))
    assert (elastic.gpus, elastic.batch) == (8, 1024)
    assert fixed.batch == 256


def test_the_batch_is_not_flipped_for_a_little() -> None:
    """At an unchanged size the batch moves for a 30 % gain and not for 1 %."""
    little = job("a", 4, (4,), model=power(0.9, fixed=0.5), batches=lambda k: (256, 512))
    much = job("b", 4, (4,), model=power(0.9, fixed=60.0), batches=lambda k: (256, 512))
    targets = plan([little, much], 8, "throughput").targets
    assert (targets[0].batch, targets[0].reason, targets[0].progress_change) == (256, "keep_best", 0.0)
    assert (targets[1].batch, targets[1].reason) == (512, "batch")
    assert 0.2 < targets[1].progress_change < 0.4


def test_goodput_takes_a_smaller_batch_than_throughput() -> None:
    """With a small noise scale a large batch wastes samples: goodput leaves it, raw throughput takes it."""
    view = job(model=power(0.9, fixed=16.0), batches=lambda k: (256, 512, 4096), noise_scale=100.0)
    assert plan([view], 8, "throughput").targets[0].batch == 4096
    assert plan([view], 8, "goodput").targets[0].batch < 4096


def test_log_and_harmonic_share_more_evenly_than_the_sum() -> None:
    """Against a job that scales perfectly, one that does not still gets more than its minimum."""
    jobs = [job(label, sizes=tuple(range(1, 16)), model=power(p)) for label, p in (("a", 1.0), ("b", 0.6))]
    assert sizes(jobs, 16, "throughput")[1] == 1
    assert sizes(jobs, 16, "log-throughput")[1] > 3
    assert sizes(jobs, 16, "log-goodput")[1] > 3
    assert sizes(jobs, 16, "harmonic")[1] > 3


@pytest.mark.parametrize("policy", ["log-throughput", "log-goodput", "harmonic"])
def test_a_waiting_job_is_started_before_others_grow(policy: str) -> None:
    """A job that may go without is still worth a start under log and harmonic objectives."""
    assert sizes([job("a", 4), job("b", 0, (0, 1, 2))], 4, policy)[1] >= 1


def test_static_keeps_what_was_asked_for() -> None:
    """Without elasticity a running job stays and a starting one gets its reference size or waits."""
    jobs = [job("a", 2), job("b", 0, (0, 1, 4, 8), reference_gpus=4), job("c", 0, (0, 4, 8), reference_gpus=4)]
    assert sizes(jobs, 8, "static") == [2, 4, 0]


def test_an_unmeasured_running_job_is_not_grown() -> None:
    """Before the first report a job keeps its size, and gives way only where somebody's minimum needs it."""
    unknown = job("a", 4, (1, 2, 4, 8), model=None)
    target = plan([unknown], 64).targets[0]
    assert (target.gpus, target.reason, target.measured) == (4, "keep_unmeasured", False)
    assert sizes([unknown, job("b", 0, (4, 8))], 6) == [2, 4]


def test_a_doubtful_growth_is_not_tried() -> None:
    """A size never measured is tried when even its pessimistic gain pays, and not when it may be a loss."""
    sure, doubtful = (job("a", 2, (2, 4), model=power(0.5, sizes_seen=(1, 2), doubt=d)) for d in (0.1, 0.6))
    assert sizes([sure], 4) == [4]
    assert sizes([doubtful], 4) == [2]


def test_exploration_is_not_bound_to_twice_the_largest_seen() -> None:
    """After one size the plan may go to any size that the model believes in."""
    model = fit([Observation(1, 1, 64, 64, 1, 0.3)])
    view = job("a", 1, (1, 2, 4, 8, 16), model=model, batches=lambda k: (64 * k,), reference_batch=64)
    target = plan([replace(view, current_batch=64)], 16).targets[0]
    assert target.gpus == 16 and not target.measured


def test_reasons_say_where_gpus_come_from_and_go() -> None:
    """Growth from idle, growth from others, shrinking for a start and for lost capacity carry different codes."""
    assert plan([job("a", 1)], 8).targets[0].reason == "grow_idle"
    shared = plan([job("a", 8, model=power(0.1)), job("b", 1, model=power(1.0))], 9).targets
    assert [t.reason for t in shared] == ["shrink_share", "grow_share"]
    assert plan([job("a", 8), job("b", 0, (2,))], 9).targets[0].reason == "shrink_for_elastic"
    assert plan([job("a", 8)], 4).targets[0].reason == "shrink_capacity"


def test_alternatives_are_the_next_best_at_the_price_of_a_gpu() -> None:
    """The explanation lists other sizes, none the chosen one, the best first."""
    result = plan([job("a", 1), job("b", 1)], 8, "throughput")
    for target in result.targets:
        listed = [k for k, _, _ in target.alternatives]
        assert len(listed) == 3 and target.gpus not in listed
        assert target.price > 0


def test_a_plan_is_deterministic() -> None:
    """The same jobs give the same plan."""
    jobs = [job(str(i), model=power(0.7)) for i in range(20)]
    assert plan(jobs, 50) == plan(jobs, 50)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": float("nan")}, "job 1207: weight nan"),
        ({"horizon_s": 0.0}, "job 1207: horizon 0.0"),
        ({"pause_s": -1.0}, "job 1207: pause -1.0"),
        ({"noise_scale": float("inf")}, "noise scale inf"),
        ({"choices": ()}, "no feasible size"),
        ({"batches": lambda k: ()}, "feasible batch"),
        ({"reference_gpus": 0}, "reference 0 GPUs"),
        ({"model": Curve(((1, float("nan")), (2, 1.0), (4, 1.0), (8, 1.0)))}, "job 1207: nan samples/s at 1 GPUs"),
        ({"model": Curve(((1, 1.0), (2, 0.0), (4, 1.0), (8, 1.0)))}, "job 1207: 0.0 samples/s at 2 GPUs on 1 nodes"),
        ({"model": Curve(((1, 1.0), (2, 2.0), (4, -1.0), (8, 1.0)))}, "job 1207: -100.0 samples/s at 4 GPUs"),
        ({"model": Curve(((1, 1.0), (2, 2.0), (4, 4.0), (8, 1e308)))}, "samples/s at 8 GPUs .* accepted: 1e-100 to 1e"),
        ({"weight": 1e300}, "job 1207: weight 1e\\+300 is not a positive number up to 1e"),
        ({"sigma": 1e308}, "job 1207: sigma 1e"),
        ({"least_per_gpu": float("nan")}, "job 1207: gain per GPU nan"),
        ({"restart_pause_s": float("inf")}, "job 1207: restart pause inf"),
        ({"model": Curve(((1, 5e-324), (2, 2.0), (4, 1.0), (8, 1.0)))}, "job 1207: .*samples/s at 1 GPUs .* 1e-100 to"),
        ({"choices": ((1.5, 1),)}, "job 1207: 1.5 GPUs on 1 nodes is no size; accepted: whole numbers up to 1e"),
        ({"choices": ((float("nan"), 1),)}, "job 1207: nan GPUs on 1 nodes is no size"),
        ({"choices": ((1, 1), (10**400, 1))}, "job 1207: 10000.* GPUs on 1 nodes is no size"),
        ({"choices": ((-1, 1),)}, "job 1207: -1 GPUs on 1 nodes is negative"),
        ({"choices": ((1, 10**400),)}, "is no size"),
        ({"batches": lambda k: (256, 0)}, "job 1207: batch 0 at 1 GPUs is none; accepted: whole numbers from 1 to 1e"),
        ({"batches": lambda k: (float("nan"),)}, "job 1207: batch nan at 1 GPUs"),
        ({"batches": lambda k: (10**400,)}, "job 1207: batch 10000"),
        ({"current_gpus": 2, "current_batch": 10**400}, "job 1207 has 2 GPUs at batch 10000"),
        ({"reference_batch": 10**400}, "job 1207: reference 1 GPUs at batch 10000"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], words: str) -> None:
    """What no plan can be made from is refused, with the job and the value."""
    with pytest.raises(PlanInputError, match=words):
        plan([job(**change)], 8, "log-goodput")  # type: ignore[arg-type]


def test_an_unknown_policy_lists_the_known() -> None:
    """A misspelt policy is answered with the accepted names."""
    with pytest.raises(PlanInputError, match="log-goodput"):
        plan([job()], 8, "troughput")
    assert DEFAULT_POLICY in POLICIES


def test_efficiency_is_one_at_the_reference_and_falls() -> None:
    """EFF(b0) = 1, a large batch costs what the formula says, and no measurement costs nothing."""
    assert goodput.efficiency(256, 256, 1000.0) == 1.0
    assert math.isclose(goodput.efficiency(2000, 1000, 1000.0), 2 / 3)
    assert goodput.efficiency(10**6, 1, None) == 1.0


def test_batch_contracts() -> None:
    """A guard keeps what the measured noise allows, what is not above the reference before that, or the smallest."""
    assert goodput.guarded((256, 512, 4096), 256, 1000.0, 0.8) == (256, 512)
    assert goodput.guarded((512, 4096), 256, 0.0, 0.8) == (512,)
    assert goodput.guarded((128, 256, 512), 256, None, 0.8) == (128, 256)
    assert goodput.guarded((512, 1024), 256, None, 0.8) == (512,)


def test_curves_read_at_once_are_the_models_own() -> None:
    """Throughput and doubt of all sizes in one call equal the model's methods, whatever the fit and the placement."""
    rng = random.Random(8)
    for _ in range(60):
        rows = []
        for _ in range(rng.randint(1, 4)):
            gpus, micro, steps = rng.choice([1, 2, 4, 8, 16]), rng.choice([8, 32, 64]), rng.choice([1, 1, 4])
            seconds = rng.uniform(0.1, 2.0)
            rows.append(Observation(gpus, -(-gpus // 4), gpus * micro * steps, micro, steps, seconds, 5.0))
        model = fit(rows)
        points = [(k, max(1, k // 4), k * b) for k in (1, 2, 3, 4, 8, 16, 64, 256) for b in (1, 8, 100)]
        own = [model.throughput(*point) for point in points]
        assert model.throughputs(points) == pytest.approx(own, rel=1e-9)
        sizes = [(k, n) for k in (1, 2, 4, 8, 16, 64, 256) for n in (1, 2) if n <= k]
        doubts = [model.uncertainties([size])[0] for size in sizes]
        assert model.uncertainties(sizes) == pytest.approx(doubts, rel=1e-7)


@pytest.mark.parametrize("room", [0, 50])
def test_what_is_kept_between_plans_changes_no_plan(room: int) -> None:
    """Over rounds in which jobs come, go and change, plans made with a cache equal those made without, and what was
    not asked for is forgotten once there is no more room."""
    rng, tables = random.Random(4), ChoiceTables(room)
    models = [power(rng.uniform(0.5, 0.95)) for _ in range(40)]
    batches = job().batches
    jobs = {i: job(str(i), model=models[i], batches=batches) for i in range(30)}
    for _ in range(12):
        for i in rng.sample(range(40), 5):
            if i in jobs and rng.random() < 0.3:
                del jobs[i]
            else:
                jobs[i] = job(str(i), rng.choice([0, 1, 2, 4]), model=models[i], batches=batches)
        views = list(jobs.values())
        tables.turn()
        assert plan(views, 100, tables=tables) == plan(views, 100)
        assert max(len(tables._alike._rows), len(tables._own._rows)) <= room + len(views)
