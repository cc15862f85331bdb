"""The solver against brute force, the plain recurrence and a MILP: equal every time, in integers and in arrays."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from instances import instances
from reference_solver import solve_reference

from slurm_elastic.daemon.optimizer.errors import InfeasiblePlan, PlanInputError
from slurm_elastic.daemon.optimizer.solver import dual, exact_core, knapsack, table
from slurm_elastic.daemon.optimizer.solver.knapsack import Solution, solve
from slurm_elastic.daemon.optimizer.solver.table import Choice
from slurm_elastic.protocol.errors import ElasticError

STYLES = ("random", "negative", "linear", "correlated", "concave", "few-values", "identical", "tiny", "huge")


@pytest.fixture(params=["integers", "arrays", "arrays, few moves kept"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test in arrays, and in Python's integers as where an int64 would overflow."""
    if request.param == "integers":
        only_integers(monkeypatch)
    elif request.param != "arrays":
        monkeypatch.setattr(dual, "MANY", 1)
        monkeypatch.setattr(exact_core, "MANY", 1)
    return str(request.param)


def only_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number fits an int64."""
    monkeypatch.setattr(table.Table, "fits_64_bits", lambda *_: False)


def value_of(rng: random.Random, style: str, size: int) -> float:
    """One option's value in a style of instance."""
    return {
        "random": rng.random() * 10,
        "negative": rng.uniform(-20, 5),
        "linear": float(size),
        "correlated": size + 3.0,
        "concave": math.sqrt(size),
        "few-values": float(rng.choice([0, 1, 2])),
        "identical": size**0.8 + (size % 3) * 0.3,
        "tiny": rng.random() * 1e-9,
        "huge": rng.random() * 1e12,
    }[style]


def instance(rng: random.Random, jobs: int, widest: int, most: int) -> list[list[Choice]]:
    """Random options: with holes, without an option 0 now and then, in no particular order."""
    style, rows = rng.choice(STYLES), []
    for _ in range(jobs):
        sizes = rng.sample(range(widest + 1), rng.randint(1, min(most, widest + 1)))
        if rng.random() < 0.8:
            sizes = [0, *(s for s in sizes if s)]
        rng.shuffle(sizes)
        rows.append([Choice(s, value_of(rng, style, s)) for s in sizes])
        if style == "identical":
            rows[-1] = rows[0]
    return rows


def brute_force(rows: list[list[Choice]], capacity: int) -> float | None:
    """The best value over every combination; None when none fits."""
    values = [
        math.fsum(o.value for o in pick) for pick in itertools.product(*rows) if sum(o.gpus for o in pick) <= capacity
    ]
    return max(values, default=None)


def check(rows: list[list[Choice]], capacity: int, answer: Solution, best: float) -> None:
    """The answer is feasible, worth what it says, proven, and as good as the best."""
    picked = [row[i] for row, i in zip(rows, answer.choice, strict=True)]
    assert sum(o.gpus for o in picked) <= capacity
    assert math.fsum(o.value for o in picked) == answer.value
    assert answer.gap <= 0
    tolerance = 1e-9 * max(abs(o.value) for row in rows for o in row)
    assert abs(answer.value - best) <= tolerance, (rows, capacity, answer, best)


def test_equals_brute_force(path: str) -> None:
    """On ten thousand tiny instances the answer is the best of all combinations, or the refusal is right."""
    rng = random.Random(f"brute {path}")
    refused = 0
    for _ in instances(10_000):
        rows, capacity = instance(rng, rng.randint(1, 5), 9, 4), rng.randint(0, 18)
        best = brute_force(rows, capacity)
        if best is None:
            refused += 1
            with pytest.raises(InfeasiblePlan):
                solve(rows, capacity)
        else:
            check(rows, capacity, solve(rows, capacity), best)
    assert 0.01 < refused / len(instances(10_000)) < 0.5  # both outcomes were really exercised


def test_equals_the_recurrence(path: str) -> None:
    """On thousands of instances of up to 14 jobs the answer has the value of the plain recurrence."""
    rng = random.Random(f"recurrence {path}")
    for _ in instances(2_500):
        rows, capacity = instance(rng, rng.randint(3, 14), 24, 9), rng.randint(10, 90)
        try:
            best = solve_reference(rows, capacity).value
        except InfeasiblePlan:
            continue
        check(rows, capacity, solve(rows, capacity), best)


def test_recurrence_equals_brute_force() -> None:
    """The reference itself is right: thousands of tiny instances by hand-checkable enumeration."""
    rng = random.Random("reference")
    for _ in instances(3_000):
        rows, capacity = instance(rng, rng.randint(1, 4), 8, 4), rng.randint(0, 16)
        best = brute_force(rows, capacity)
        if best is None:
            with pytest.raises(InfeasiblePlan):
                solve_reference(rows, capacity)
        else:
            answer = solve_reference(rows, capacity)
            assert math.isclose(answer.value, best, rel_tol=1e-12, abs_tol=1e-15)
            assert sum(row[i].gpus for row, i in zip(rows, answer.choice, strict=True)) <= capacity


def test_equals_a_milp_on_medium_instances(path: str) -> None:
    """A mixed-integer solver at gap zero finds the same value on instances of 30 jobs."""
    optimize = pytest.importorskip("scipy.optimize")
    rng = random.Random(f"milp {path}")
    for _ in range(12):
        rows, capacity = instance(rng, 30, 40, 10), rng.randint(150, 500)
        flat = [(j, o) for j, row in enumerate(rows) for o in row]
        one = np.zeros((len(rows), len(flat)))
        one[[j for j, _ in flat], range(len(flat))] = 1
        scale = max(abs(o.value) for _, o in flat)
        sizes = [[o.gpus for _, o in flat]]
        limits = [optimize.LinearConstraint(one, 1, 1), optimize.LinearConstraint(sizes, 0, capacity)]
        cost = np.array([-o.value / scale for _, o in flat])
        found = optimize.milp(cost, constraints=limits, integrality=1, bounds=(0, 1), options={"mip_rel_gap": 0})
        if found.x is None:
            with pytest.raises(InfeasiblePlan):
                solve(rows, capacity)
            continue
        best = math.fsum(o.value for (_, o), x in zip(flat, found.x, strict=True) if x > 0.5)
        answer = solve(rows, capacity)
        assert answer.gap <= 0
        assert abs(answer.value - best) <= 1e-7 * scale * len(rows)


def test_many_identical_jobs_with_a_degenerate_multiplier(path: str) -> None:
    """A sweep of 400 equal jobs, where every choice ties, is still proven optimal (and by the known optimum)."""
    row = [Choice(k, float(k)) for k in (0, 3, 5, 8)]
    answer = solve([row] * 400, 1201)
    assert answer.gap <= 0 and answer.value == 1201.0


def test_subset_sum_like_instances(path: str) -> None:
    """Even weights against an odd capacity leave one GPU idle: the bound is brought down to the value."""
    rng = random.Random(5)
    rows = [[Choice(0, 0.0), *(Choice(2 * k, 2.0 * k) for k in rng.sample(range(1, 60), 4))] for _ in range(60)]
    answer = solve(rows, 1001)
    assert answer.gap <= 0 and answer.value == 1000.0


def test_an_answer_that_ran_out_of_work_says_how_far_it_may_be() -> None:
    """With almost no work allowed the plan is feasible, the bound holds, and the reason is given."""
    rng = random.Random(9)
    rows = [[Choice(0, 0.0), *(Choice(2 * k, 2.0 * k) for k in rng.sample(range(1, 60), 4))] for _ in range(60)]
    answer = solve(rows, 1001, work=5)
    assert answer.gap > 0
    assert answer.value <= 1000.0 <= answer.bound
    assert sum(row[i].gpus for row, i in zip(rows, answer.choice, strict=True)) <= 1001


def test_no_jobs_and_no_gpus() -> None:
    """Nothing to share and nothing to share it among are plans too."""
    assert solve([], 8) == Solution((), 0.0)
    assert solve([[Choice(0, 1.5)], [Choice(4, 9.0), Choice(0, 0.0)]], 0).choice == (0, 1)


def test_the_lighter_of_equal_choices_is_taken_when_nothing_is_scarce() -> None:
    """GPUs that bring nothing are not handed out."""
    assert solve([[Choice(1, 1.0), Choice(2, 2.0), Choice(4, 2.0)]], 64).choice == (1,)


def test_infeasible_minima_name_the_jobs() -> None:
    """The refusal names, in arrival order, the jobs that no longer fit, by label and by position."""
    rows = [[Choice(4, 1.0)], [Choice(4, 1.0)], [Choice(8, 1.0)], [Choice(0, 0.0)]]
    with pytest.raises(InfeasiblePlan, match=r"need 16 GPUs .* are 10; no room for job 1207 \(8 GPUs\)") as caught:
        solve(rows, 10, labels=["1205", "1206", "1207", "1208"])
    assert caught.value.jobs == (2,)
    assert isinstance(caught.value, ElasticError)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([Choice(1, float("nan"))], r"job 7: value nan at 1 GPUs is not finite"),
        ([Choice(1, float("inf"))], "not finite"),
        ([Choice(-2, 1.0)], r"job 7: -2 GPUs is negative"),
        ([], "job 7 has no choice"),
    ],
)
def test_bad_input_is_refused_by_name(row: list[Choice], words: str) -> None:
    """A value that no plan can be made from is refused with the job and the value."""
    with pytest.raises(PlanInputError, match=words):
        solve([row], 4, labels=["7"])


def test_negative_capacity_is_refused() -> None:
    """A capacity below zero is a caller's mistake, not an infeasible plan."""
    with pytest.raises(PlanInputError, match="capacity -1"):
        solve([[Choice(0, 0.0)]], -1)


def test_numbers_too_large_for_an_int64_are_solved_in_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans and values near the 64-bit limit take the exact path instead of overflowing."""
    rows = [([0, 99_991], [0.0, 1e15]), ([0, 65_537, 100_003], [0.0, 3.0, 1.1e15]), ([1, 2], [1e13, 2e13])]
    columns = table.build([[Choice(k, v) for k, v in zip(*row, strict=True)] for row in rows])
    exactly, used = knapsack.solve_table_exactly, list[int]()

    def counted(columns: table.Table, capacity: int, work: int) -> Solution:
        used.append(capacity)
        return exactly(columns, capacity, work)

    monkeypatch.setattr(knapsack, "solve_table_exactly", counted)
    assert knapsack.solve_table(columns, 100_005).choice == exactly(columns, 100_005).choice == (0, 2, 1)
    assert not used or used == [100_005]
    huge = replace(columns, value=columns.value << 18)
    assert not huge.fits_64_bits(1, columns.reach)
    assert knapsack.solve_table(huge, 100_005).choice == (0, 2, 1)
    assert used[-1] == 100_005


def test_slopes_that_a_double_cannot_tell_apart_are_ordered_exactly() -> None:
    """Of two jobs the steeper by a third of 2**-58 is served first, and neither gets what is not there."""
    step = 1 << 58
    starts, weight, value = np.array([0, 2, 4]), np.array([0, 1, 0, 3]), np.array([0, step, 0, 3 * step + 1])
    columns = table.Table(starts, weight, value, 1.0, np.array([0, 1, 0, 1]))
    found = [knapsack.solve_table_exactly(columns, capacity).choice for capacity in range(5)]
    assert found == [(0, 0), (1, 0), (1, 0), (0, 1), (1, 1)]


def columns(row: list[Choice]) -> table.Columns:
    """A list as columns: of each size the best choice."""
    best = dict[int, Choice]()
    for choice in sorted(row, key=lambda o: (o.gpus, -o.value)):
        best.setdefault(choice.gpus, choice)
    return table.Columns(np.array([(o.gpus, o.value, o.batch, o.speedup) for o in best.values()], dtype=float).T)


def test_columns_get_the_same_plan_as_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of a list of choices get the same sizes and the same proof; integers prove the same value."""
    rng = random.Random(5)
    for _ in instances(1500):
        lists = instance(rng, rng.randint(4, 40), rng.choice([4, 9, 30]), 8)
        rows = [columns(row) if rng.random() < 0.8 else row for row in lists]
        least = sum(min(o.gpus for o in row) for row in lists)
        for capacity in (least, least + rng.randint(1, 60)):
            plain, found = solve(lists, capacity), solve(rows, capacity)
            assert replace(plain, choice=found.choice) == found
            picked = [[row[i].gpus for row, i in zip(some, answer.choice, strict=True)]
                      for some, answer in ((lists, plain), (rows, found))]  # fmt: skip
            assert picked[0] == picked[1]
            with monkeypatch.context() as patch:
                only_integers(patch)
                exactly = solve(rows, capacity)
            assert (found.value, found.gap) == (exactly.value, exactly.gap) and found.gap <= 0


def test_columns_are_a_list_of_choices() -> None:
    """What is asked of a list is asked of columns, too."""
    row = [Choice(1, 0.5, 64, 1.0), Choice(4, 2.5, 128, 3.0)]
    own = columns(row)
    assert list(own) == row and len(own) == 2 and own[1] == row[1] and own[-1:] == row[-1:]
    assert own == columns(row) and own != columns(row[:1]) and own != row


def test_a_size_that_brings_no_more_than_a_smaller_one_is_left_out() -> None:
    """Neither an equal nor a worse larger size comes into the search, wherever it stands behind the better one."""
    rows = [[Choice(k, v) for k, v in enumerate((0.0, 3.0, 3.0, 2.0, 3.5, 1.0, 3.4))], [Choice(2, 1.0)]]
    found = table.build(rows)
    assert found.origin.tolist() == [0, 1, 4, 0] and found.starts.tolist() == [0, 3, 4]
    assert found.weight.tolist() == [0, 1, 4, 2]


def test_errors_of_columns_name_the_same_jobs() -> None:
    """Columns are refused in the words that a list is refused in."""
    row = [Choice(3, 1.0), Choice(4, 2.0)]
    for form in (list[Choice], columns):
        with pytest.raises(InfeasiblePlan, match=r"need 12 GPUs and there are 7; no room for job c \(3 GPUs\), job d"):
            solve([form(row)] * 4, 7, list("abcd"))
        with pytest.raises(PlanInputError, match="job c: value nan"):
            solve([form(row), form(row), *[form([Choice(0, float("nan"))])] * 2], 9, list("abcd"))
        with pytest.raises(PlanInputError, match="capacity -1"):
            solve([form(row)] * 4, -1, list("abcd"))


@pytest.mark.parametrize("capacity", [float("nan"), float("inf"), 7.5, -1, -math.inf, 10**16])
def test_what_is_no_capacity_is_refused(capacity: int) -> None:
    """A capacity that no cluster has is an error that names it, whether there are jobs or not."""
    for rows in ([], [[Choice(0, 0.0), Choice(2, 1.0)]]):
        with pytest.raises(PlanInputError, match=f"capacity {capacity} .* from 0 to 1e\\+15"):
            solve(rows, capacity)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice(1 << 53, 1.0), "9007199254740992 GPUs is no size; accepted: whole numbers up to 1e"),
        (Choice((1 << 53) + 1, 1.0), "9007199254740993 GPUs is no size"),
        (Choice(1.5, 1.0), "1.5 GPUs is no size"),  # type: ignore[arg-type]
        (Choice(math.nan, 1.0), "nan GPUs is no size"),  # type: ignore[arg-type]
        (Choice(4, 1e308), "value 1e\\+308 at 4 GPUs is too large; accepted: up to 1e\\+290"),
        (Choice(4, -math.inf), "value -inf at 4 GPUs is not finite"),
        (Choice(4, 10**400), "value 10000"),
        (Choice(10**400, 1.0), "10000.* GPUs is no size"),
    ],
)
@pytest.mark.parametrize("others", [[Choice(0, 0.0)], [Choice(9, 0.0), Choice(9, 1.0)]])
def test_sizes_and_values_out_of_bounds_are_refused(
    path: str, choice: Choice, words: str, others: list[Choice]
) -> None:
    """No path takes a size or a value that it cannot count exactly."""
    with pytest.raises(PlanInputError, match=f"job b: {words}"):
        solve([[Choice(0, 0.0)], [*others, choice]], 100, ["a", "b"])


def test_the_largest_accepted_numbers_are_solved(path: str) -> None:
    """At the bounds of what is accepted the plan is right and within capacity; so is one of the smallest doubles."""
    rows = [[Choice(0, 0.0), Choice(10**9 - i, 1e290 * (1 - i / 8))] for i in range(4)]
    answer = solve(rows, 2 * 10**9)
    assert answer.choice == (1, 1, 0, 0) and answer.gap <= 0 and answer.value <= answer.bound < math.inf
    assert solve(rows, 10**15).choice == (1, 1, 1, 1)
    least = solve([[Choice(0, 0.0), Choice(1, 5e-324)], [Choice(0, 0.0), Choice(1, 1e-310)]], 1)
    assert least.bound >= 1e-310 and least.gap <= 0


def test_the_bound_is_above_every_plan_in_exact_arithmetic(path: str) -> None:
    """What the rounding of values hides is part of the bound, and it is none where values need no rounding."""
    rng, hidden = random.Random(f"bound {path}"), 0
    for _ in instances(1500):
        rows, capacity = instance(rng, rng.randint(2, 5), 9, 4), rng.randint(9, 45)
        rows[0] = [replace(o, value=o.value + rng.choice([0.0, 1e3 * rng.random()])) for o in rows[0]]
        picks = [pick for pick in itertools.product(*rows) if sum(o.gpus for o in pick) <= capacity]
        if not picks:
            continue
        best = max(sum(Fraction(o.value) for o in pick) for pick in picks)
        answer = solve(rows, capacity)
        assert best <= Fraction(answer.bound) and answer.gap <= 0
        assert answer.rounding <= 1e-10 * max(abs(o.value) for row in rows for o in row)
        hidden += best > Fraction(answer.value)
    assert hidden > 0  # plans that only differ below the rounding are really among them
    assert solve([[Choice(0, 0.0), Choice(3, 2.5)], [Choice(2, 7.0)]], 4).rounding == 0
