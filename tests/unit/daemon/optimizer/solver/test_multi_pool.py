"""Several pools and nested limits: exact against brute force and a MILP."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from instances import instances

from slurm_elastic.daemon.optimizer.errors import InfeasiblePlan, PlanInputError
from slurm_elastic.daemon.optimizer.solver import meet_in_the_middle
from slurm_elastic.daemon.optimizer.solver.limits import Cap, solve_capped, solve_limited
from slurm_elastic.daemon.optimizer.solver.multi_pool import PoolChoice, solve_pools
from slurm_elastic.daemon.optimizer.solver.table import Choice

LABELS = [str(j) for j in range(60)]


def pool_rows(rng: random.Random, pools: int, jobs: int) -> list[list[PoolChoice]]:
    """Random choices, now and then from two pools at once, now and then without a choice of nothing."""
    rows = []
    for _ in range(jobs):
        row = [PoolChoice((0,) * pools, 0.0)] if rng.random() < 0.8 else []
        for _ in range(rng.randint(1, 4)):
            taken = [0] * pools
            taken[rng.randrange(pools)] = rng.randint(0, 6)
            if rng.random() < 0.2:
                taken[rng.randrange(pools)] = rng.randint(0, 4)
            value = rng.choice([rng.random() * 5, float(sum(taken)), float(rng.randint(-3, 6))])
            row.append(PoolChoice(tuple(taken), value))
        rows.append(row)
    return rows


@pytest.mark.parametrize("numbers", ["of 64 bits", "of Python's"])
def test_pools_equal_brute_force(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On four thousand small instances of one to three pools the plan is the best of all, or rightly refused."""
    if numbers == "of Python's":
        monkeypatch.setattr(meet_in_the_middle, "MOST", 1)
    rng, refused, tried = random.Random(numbers), 0, instances(4000) if numbers == "of 64 bits" else range(400)
    for _ in tried:
        pools = rng.randint(1, 3)
        rows, capacities = pool_rows(rng, pools, rng.randint(1, 5)), [rng.randint(0, 10) for _ in range(pools)]
        best = max(
            (
                math.fsum(o.value for o in pick)
                for pick in itertools.product(*rows)
                if all(sum(o.gpus[t] for o in pick) <= capacities[t] for t in range(pools))
            ),
            default=None,
        )
        if best is None:
            refused += 1
            with pytest.raises(InfeasiblePlan):
                solve_pools(rows, capacities, LABELS)
            continue
        answer = solve_pools(rows, capacities, LABELS)
        assert answer.gap <= 0 and abs(answer.value - best) < 1e-8, (rows, capacities, answer, best)
        for t, capacity in enumerate(capacities):
            assert sum(row[i].gpus[t] for row, i in zip(rows, answer.choice, strict=True)) <= capacity
    assert refused > len(tried) // 50


def test_linked_pools_equal_a_milp_on_a_medium_instance() -> None:
    """Sixty jobs over three GPU types: the same value as a MILP solver at gap zero over all choices."""
    optimize = pytest.importorskip("scipy.optimize")
    rng = random.Random(3)
    rows = []
    for _ in range(60):
        row, exponent = [PoolChoice((0, 0, 0), 0.0)], rng.uniform(0.5, 0.95)
        for t in range(3):
            speed = 1.0 if t == 0 else rng.uniform(0.3, 1.0)
            sizes = [k for k in (1, 2, 4, 8, 16) if rng.random() < 0.8]
            row += [PoolChoice(tuple(k * (t == u) for u in range(3)), speed * k**exponent) for k in sizes]
        rows.append(row)
    capacities = [90, 40, 30]
    flat = [(j, o) for j, row in enumerate(rows) for o in row]
    one = np.zeros((len(rows), len(flat)))
    one[[j for j, _ in flat], range(len(flat))] = 1
    usage = np.array([o.gpus for _, o in flat], dtype=float).T
    limits = [optimize.LinearConstraint(one, 1, 1), optimize.LinearConstraint(usage, 0, capacities)]
    found = optimize.milp(
        [-o.value for _, o in flat], constraints=limits, integrality=1, bounds=(0, 1), options={"mip_rel_gap": 0}
    )
    answer = solve_pools(rows, capacities, LABELS)
    assert answer.gap <= 0
    assert math.isclose(answer.value, -found.fun, rel_tol=1e-8)


def test_pools_of_whole_nodes_cost_no_more_than_their_nodes() -> None:
    """Thirty jobs of whole nodes in two linked pools: the search counts nodes, not the GPUs left unused."""
    rng = random.Random(0)
    sizes = [sorted({8 * rng.randint(1, 64) for _ in range(10)}) for _ in range(30)]
    rows = [[PoolChoice((k * (j % 2), k), k ** rng.uniform(0.4, 0.98)) for k in own] for j, own in enumerate(sizes)]
    least = [sum(row[0].gpus[t] for row in rows) for t in range(2)]
    answer = solve_pools(rows, [3 * k for k in least], LABELS, work=200_000)
    assert answer.gap <= 0


def test_pools_that_no_job_links_do_not_disturb_each_other() -> None:
    """Two partitions without common jobs: each is planned exactly, and a price is given."""
    rows = [[PoolChoice((k, 0), k**0.5) for k in (0, 1, 2, 4)] for _ in range(3)]
    rows += [[PoolChoice((0, k), k**0.5) for k in (0, 1, 2, 4)] for _ in range(3)]
    answer = solve_pools(rows, [4, 12], LABELS)
    assert sorted(rows[j][i].gpus for j, i in enumerate(answer.choice)) == [*[(0, 4)] * 3, *[(1, 0)] * 2, (2, 0)]
    assert answer.gap <= 0 and math.isclose(answer.value, 2 + 2**0.5 + 6)


def test_pools_out_of_work_state_their_gap() -> None:
    """With next to no work the plan is feasible and says how far it may be."""
    rng = random.Random(1)
    rows = [
        [PoolChoice((0, 0), 0.0)]
        + [PoolChoice((k * (t == 0), k * (t == 1)), k + rng.random()) for k in (2, 3, 5, 7, 11) for t in (0, 1)]
        for _ in range(40)
    ]
    exact = solve_pools(rows, [101, 53], LABELS)
    rough = solve_pools(rows, [101, 53], LABELS, work=200)
    assert exact.gap == 0
    assert rough.gap > 0
    assert rough.value <= exact.value <= rough.bound + 1e-9


def test_limits_equal_brute_force() -> None:
    """On four thousand instances with nested and disjoint limits the plan is the best of all, or rightly refused."""
    rng, refused = random.Random("caps"), 0
    for _ in instances(4000):
        jobs, capacity = rng.randint(1, 6), rng.randint(0, 16)
        rows = []
        for _ in range(jobs):
            row = [Choice(0, 0.0)] if rng.random() < 0.8 else []
            row += [
                Choice(rng.randint(0, 8), rng.choice([rng.random() * 5, float(rng.randint(-2, 6))]))
                for _ in range(rng.randint(1, 4))
            ]
            rows.append(row)
        members = list(range(jobs))
        rng.shuffle(members)
        cut, inner = rng.randint(0, jobs), rng.randint(0, jobs)
        nested_caps = [
            Cap(rng.randint(0, 10), frozenset(members[:cut]), "account a"),
            Cap(rng.randint(0, 10), frozenset(members[cut:]), "account b"),
            Cap(rng.randint(0, 6), frozenset(members[: min(cut, inner)]), "user u"),
        ]
        best = max(
            (
                math.fsum(o.value for o in pick)
                for pick in itertools.product(*rows)
                if sum(o.gpus for o in pick) <= capacity
                and all(sum(pick[j].gpus for j in c.members) <= c.limit for c in nested_caps)
            ),
            default=None,
        )
        if best is None:
            refused += 1
            with pytest.raises(InfeasiblePlan):
                solve_capped(rows, capacity, nested_caps)
            continue
        answer = solve_capped(rows, capacity, nested_caps)
        assert best <= answer.bound
        assert answer.gap <= 0 and abs(answer.value - best) < 1e-8, (rows, capacity, nested_caps, answer, best)
    assert refused > 0.01 * len(instances(4000))


def test_an_impossible_limit_names_the_group() -> None:
    """A group whose members' minima exceed its limit is named, with its jobs."""
    rows = [[Choice(3, 1.0)], [Choice(2, 1.0)], [Choice(1, 1.0)]]
    with pytest.raises(InfeasiblePlan, match=r"user mia: .* limit of 4 GPUs") as caught:
        solve_capped(rows, 16, [Cap(4, frozenset({0, 1}), "user mia")])
    assert caught.value.jobs == (0, 1)


def test_groups_must_nest() -> None:
    """Limits over groups that overlap without nesting are refused: folding them would be wrong."""
    with pytest.raises(PlanInputError, match="overlap"):
        solve_capped([[Choice(0, 0.0)]] * 3, 4, [Cap(2, frozenset({0, 1}), "a"), Cap(2, frozenset({1, 2}), "b")])


def test_limits_across_pools_equal_brute_force() -> None:
    """On a thousand small instances of one to three pools under limits that nest, cross, and span pools, the plan is
    the best of all, and every limit that an optimum without it breaks is named."""
    rng, bound, spanning = random.Random(5), 0, 0
    for _ in instances(1000):
        pools = [[capped_row(rng) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 3))]
        capacities = [rng.randint(0, 9) for _ in pools]
        home = [g for g, rows in enumerate(pools) for _ in rows]
        flat = [row for rows in pools for row in rows]
        if math.prod(map(len, flat)) > 3000:
            continue
        nested_caps = []
        for _ in range(rng.randint(0, 3)):
            members = frozenset(rng.sample(range(len(flat)), rng.randint(1, len(flat))))
            nested_caps.append(Cap(rng.randint(0, 8), members))
        best = max(
            math.fsum(o.value for o in pick)
            for pick in itertools.product(*flat)
            if all(sum(pick[j].gpus for j, g in enumerate(home) if g == t) <= k for t, k in enumerate(capacities))
            and all(sum(pick[j].gpus for j in cap.members) <= cap.limit for cap in nested_caps)
        )
        found = solve_limited(pools, capacities, nested_caps, [str(j) for j in range(len(flat))])
        assert all(s.gap <= 0 for s in found.solutions)
        assert math.isclose(math.fsum(s.value for s in found.solutions), best, abs_tol=1e-8)
        assert best <= math.fsum(s.bound for s in found.solutions)
        chosen, free = (
            [row[i] for rows, s in zip(pools, answers, strict=True) for row, i in zip(rows, s.choice, strict=True)]
            for answers in (found.solutions, found.unlimited)
        )
        assert all(sum(chosen[j].gpus for j in cap.members) <= cap.limit for cap in nested_caps)
        first = [c for c, cap in enumerate(nested_caps) if sum(free[j].gpus for j in cap.members) > cap.limit]
        assert set(first) <= set(found.binding)
        bound += bool(first)
        spanning += any(len({home[j] for j in nested_caps[c].members}) > 1 for c in first)
    tried = len(instances(1000))
    assert bound > 0.15 * tried and spanning > 0.08 * tried


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (math.nan, "limit of user mia: nan is no number of GPUs"),
        (math.inf, "limit of user mia: inf is no number of GPUs"),
        (2.5, "limit of user mia: 2.5 is no number of GPUs"),
        (-1, "limit of user mia: -1 is negative"),
    ],
)
def test_what_is_no_limit_is_refused(limit: int, words: str) -> None:
    """A limit that cannot be counted is refused with its owner's name, in one pool and in several."""
    cap, row = Cap(limit, frozenset({0}), "user mia"), [Choice(0, 0.0), Choice(4, 1.0)]
    with pytest.raises(PlanInputError, match=words):
        solve_capped([row], 8, [cap])
    with pytest.raises(PlanInputError, match=words):
        solve_limited([[row], [row]], [8, 8], [cap], ["1", "2"])


def test_limits_and_capacities_of_any_size_are_kept() -> None:
    """A limit of 1e12 GPUs over small jobs binds nobody; one over jobs of 1e9 GPUs is kept without a table as long."""
    small, large = [Choice(0, 0.0), Choice(4, 1.0)], [Choice(0, 0.0), Choice(10**8, 1.0), Choice(10**9, 3.0)]
    found = solve_capped([small] * 3, 10**12, [Cap(10**12, frozenset({0, 1, 2})), Cap(8, frozenset({0, 1}))])
    assert found.choice == (1, 1, 1)
    caps = [Cap(15 * 10**8, frozenset({0, 1}), "user mia")]
    (answer,) = solve_limited([[large] * 3], [10**12], caps, ["1", "2", "3"]).solutions
    assert sorted(answer.choice[:2]) == [1, 2] and answer.choice[2] == 2 and answer.gap <= 0
    with pytest.raises(PlanInputError, match="limit 1500000000 of user mia is too large to fold"):
        solve_capped([large] * 3, 10**12, caps)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (PoolChoice((1, 1 << 53), 1.0), "job 1: 9007199254740992 GPUs is no size"),
        (PoolChoice((1, 0.5), 1.0), "job 1: 0.5 GPUs is no size"),  # type: ignore[arg-type]
        (PoolChoice((1, -2), 1.0), "job 1: -2 GPUs is negative"),
        (PoolChoice((1, 2), math.nan), "job 1: value nan at 1 \\+ 2 GPUs is not finite"),
        (PoolChoice((1, 2), 1e308), "job 1: value 1e\\+308 at 1 \\+ 2 GPUs is too large"),
        (PoolChoice((1, 2), 10**400), "job 1: value 1000"),
        (PoolChoice((10**400, 2), 1.0), "job 1: 1000.* GPUs is no size"),
        (PoolChoice((1,), 1.0), "job 1: a choice of 1 GPUs is of 1 pools, and there are 2; accepted: one size"),
        (PoolChoice((1, 2, 0), 1.0), "job 1: a choice of 1 \\+ 2 \\+ 0 GPUs is of 3 pools, and there are 2"),
        (PoolChoice((), 1.0), "job 1: a choice of no GPUs is of 0 pools"),
    ],
)
def test_bad_choices_in_several_pools_are_refused(choice: PoolChoice, words: str) -> None:
    """Several pools refuse what one pool refuses."""
    with pytest.raises(PlanInputError, match=words):
        solve_pools([[PoolChoice((0, 0), 0.0), choice]], [4, 4], ["1"])
    with pytest.raises(PlanInputError, match="capacity nan"):
        solve_pools([[PoolChoice((0, 0), 0.0)]], [4, math.nan], ["1"])  # type: ignore[list-item]
    with pytest.raises(PlanInputError, match="job 2 has no choice at all"):
        solve_pools([[PoolChoice((0, 0), 0.0)], []], [4, 4], ["1", "2"])
    with pytest.raises(PlanInputError, match="job 1: a choice of 0 \\+ 0 GPUs is of 2 pools, and there are 3"):
        solve_pools([[PoolChoice((0, 0), 0.0)]], [4, 4, 4], ["1"])
    assert solve_pools([], [4, 4], []).choice == ()


def capped_row(rng: random.Random) -> list[Choice]:
    """A job that may go without, and a few sizes."""
    return [Choice(0, 0.0), *(Choice(rng.randint(1, 6), rng.random() * 5) for _ in range(rng.randint(1, 3)))]


@pytest.mark.parametrize("most", [meet_in_the_middle.MOST, 1])
def test_pools_that_cost_nothing_are_kept_within_all_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capacity whose price is 0 is left out until a plan breaks it, and no plan given breaks it."""
    monkeypatch.setattr(meet_in_the_middle, "MOST", most)
    broken, breaks = list[bool](), meet_in_the_middle.Search._breaks

    def counted(search: meet_in_the_middle.Search, found: list[int]) -> bool:
        broken.append(breaks(search, found))
        return broken[-1]

    monkeypatch.setattr(meet_in_the_middle.Search, "_breaks", counted)
    rng = random.Random(11)
    for _ in range(300):
        rows, capacities = pool_rows(rng, 4, rng.randint(2, 5)), [rng.randint(4, 30) for _ in range(4)]
        answer = best = None
        for pick in itertools.product(*rows):
            if all(sum(o.gpus[t] for o in pick) <= capacities[t] for t in range(4)):
                value = math.fsum(o.value for o in pick)
                best = value if best is None else max(best, value)
        if best is not None:
            answer = solve_pools(rows, capacities, LABELS)
            assert abs(answer.value - best) < 1e-8 and answer.gap <= 0
    assert any(broken)


def test_the_largest_accepted_numbers_are_planned_in_several_pools() -> None:
    """At the bounds of what is accepted the plan is right and within every capacity."""
    big = 10**9
    rows = [[PoolChoice((0, 0), 0.0), PoolChoice((big, 0), 1e290 * (1 - i / 8)), PoolChoice((0, big), 1e289)]
            for i in range(4)]  # fmt: skip
    answer = solve_pools(rows, [2 * big, big], LABELS)
    assert answer.choice == (1, 1, 2, 0) or answer.choice == (1, 1, 0, 2)
    assert answer.gap <= 0 and answer.value <= answer.bound < math.inf
    assert solve_pools(rows, [10**15, 10**15], LABELS).choice == (1, 1, 1, 1)
