"""The evolutionary refiner: never below its seed, the same each time, within every limit, and placement as it says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.daemon.capacity.placement import few_switches
from slurm_elastic.daemon.optimizer.evolution.arrays import ChoiceArrays
from slurm_elastic.daemon.optimizer.evolution.placing import SHARED, Objective, Placing
from slurm_elastic.daemon.optimizer.evolution.refine import evolve, generations_for, within
from slurm_elastic.daemon.optimizer.evolution.search import Search, indices
from slurm_elastic.daemon.optimizer.problem import Layout, Problem, checked
from slurm_elastic.daemon.optimizer.solver.crossing_limits import solve_limited
from slurm_elastic.daemon.optimizer.solver.nested_caps import Cap
from slurm_elastic.daemon.optimizer.solver.table import Choice

NODE = 4
Where = dict[str, int]


def problem(seed: int, jobs: int = 8, nodes: int = 8, pools: int = 1, capped: bool = False, leaves: int = 0) -> Problem:
    """Some jobs run on fragments of nodes, some wait; curves are concave with noise; values are speedups. `leaves`:
    switches over the nodes of all pools, each further one of a job for a tenth of its progress; a node may be under
    none."""
    rng = random.Random(seed)
    free = [{f"p{pool}n{node}": NODE for node in range(nodes)} for pool in range(pools)]
    rows, present, home, held = list[list[Choice]](), list[int](), list[int](), list[dict[int, Where]]()
    for j in range(jobs):
        pool = j % pools
        now, kept = rng.choice([0, 0, 1, 2, 3, 5]), dict[str, int]()
        for name in rng.sample(sorted(free[pool]), nodes):
            if sum(kept.values()) < now and free[pool][name]:
                kept[name] = min(free[pool][name], now - sum(kept.values()))
                free[pool][name] -= kept[name]
        now = sum(kept.values())
        sizes = sorted({now, *rng.sample(range(1, 17), 6)})
        power = rng.uniform(0.3, 1.0)
        values = [k**power * rng.uniform(0.95, 1.0) for k in sizes]
        rows.append([Choice(k, v, 0, v) for k, v in zip(sizes, values, strict=True)])
        downs = [k for k in sizes if k < now]
        held.append({now: kept} | {k: partly(kept, k) for k in downs})
        present.append(now)
        home.append(pool)
    capacities = [sum(free[pool].values()) + sum(present[pool::pools]) for pool in range(pools)]
    least = [row[0].gpus for row in rows]
    order = sorted(range(jobs), key=lambda j: home[j])
    rows, present, held = ([what[j] for j in order] for what in (rows, present, held))  # type: ignore[assignment]
    home, least = [home[j] for j in order], [least[j] for j in order]
    members = frozenset(rng.sample(range(jobs), jobs // 2))
    room = max(sum(least[j] for j in members), sum(present[j] for j in members))
    caps = (Cap(room + rng.randint(0, 6), members, "user a"),) if capped else ()
    for pool in range(pools):  # nobody is below what it must have
        capacities[pool] = max(capacities[pool], sum(k for k, at in zip(least, home, strict=True) if at == pool))
    exact = solved(rows, home, capacities, caps)
    names = sorted(name for own in free for name in own)
    over = {name: f"leaf{rng.randrange(leaves)}" for name in names if rng.random() < 0.95} if leaves else {}
    cost = 0.1 if leaves else 0.0
    layout = Layout(free, [NODE] * pools, held, most_moves=3, switches=over, switch_cost=cost)
    weights = [1.0] * jobs
    labels = [str(j) for j in range(jobs)]
    nodes = [[counted(own, choice.gpus) for choice in row] for own, row in zip(held, rows, strict=True)]
    return Problem(labels, rows, present, home, capacities, caps, exact, weights, [0.1] * jobs, nodes, layout)


def counted(held: dict[int, Where], gpus: int) -> int:
    """The nodes that the planner counts on: those kept, and as few more as a growth needs."""
    now = max(held)
    return len(held[gpus]) if gpus in held else len(held[now]) - (now - gpus) // NODE


def partly(kept: Where, gpus: int) -> Where:
    """The first of these GPUs."""
    found = dict[str, int]()
    for name, own in sorted(kept.items()):
        taken = min(own, gpus - sum(found.values()))
        found |= {name: taken} if taken else {}
    return found


def solved(rows: list[list[Choice]], home: list[int], capacities: list[int], caps: Sequence[Cap]) -> list[int]:
    by_pool = [[row for row, at in zip(rows, home, strict=True) if at == pool] for pool in range(len(capacities))]
    found = solve_limited(by_pool, capacities, caps, [str(j) for j in range(len(rows))])
    return [i for one in found.solutions for i in one.choice]


def value(given: Problem, plan: Sequence[int], relative: bool = False) -> float:
    arrays = ChoiceArrays(given)
    return float(Objective(arrays, Placing(given, arrays), relative)(arrays.at(plan)[None, :])[0])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 2), st.booleans(), st.integers(0, 12), st.sampled_from([0, 3]))
def test_never_below_its_seed_and_never_outside_a_limit(
    seed: int, pools: int, capped: bool, generations: int, leaves: int
) -> None:
    """Whatever the instance and however short the search: every capacity and limit holds, and the plan is worth no less
    than the exact one once placement is counted, leaf switches or none."""
    one = problem(seed, pools=pools, capped=capped, leaves=leaves)
    plan = evolve(one, generations, relative=False)
    checked(one, plan)
    assert value(one, plan) >= value(one, one.exact)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_more_generations_are_never_worse(seed: int) -> None:
    """Anytime: stopped later, the search has the same plan or a better one."""
    one = problem(seed)
    reached = [value(one, evolve(one, generations, relative=False)) for generations in (0, 3, 10, 30)]
    assert reached == sorted(reached)


def test_the_same_number_gives_the_same_plan() -> None:
    """Deterministic by seed; and the number matters, or it would be no random search."""
    one = problem(3, jobs=20, nodes=20)
    arrays = ChoiceArrays(one)
    first, again, other = (populated(arrays, one, number) for number in (7, 7, 8))
    assert (first.people == again.people).all() and (first.worth == again.worth).all()
    assert (first.people != other.people).any()
    assert evolve(one) == evolve(one)
    under = problem(3, jobs=20, nodes=20, leaves=4)
    assert evolve(under) == evolve(under)


def populated(arrays: ChoiceArrays, one: Problem, number: int) -> Search:
    search = Search(arrays, Objective(arrays, Placing(one, arrays), False), [arrays.at(one.exact)], number)
    for _ in range(5):
        search.generation()
    return search


def test_without_a_seed_it_comes_close_to_the_exact_plan() -> None:
    """From random plans alone, where nothing but the sum counts: 98 % of the optimum in fifty generations, and not
    above it."""
    one = problem(5, jobs=30, nodes=30)
    arrays = ChoiceArrays(one)
    search = Search(arrays, lambda people: arrays.value[people].sum(axis=1), [], 1)
    for _ in range(50):
        search.generation()
    best = sum(row[i].value for row, i in zip(one.choices, one.exact, strict=True))
    checked(one, indices(arrays, search.best))
    assert 0.98 * best <= search.worth[0] <= best + 1e-6


def test_it_gains_where_fragments_cost() -> None:
    """On clusters in fragments, a tenth of a job's progress for each further node: better than the exact plan by a
    percent in the mean."""
    cases = [problem(seed, jobs=12, nodes=10) for seed in range(10)]
    gains = [value(one, evolve(one, relative=False)) / value(one, one.exact) - 1 for one in cases]
    assert min(gains) >= 0.0 and sum(gains) / len(gains) > 0.01


def test_it_gains_where_switches_cost() -> None:
    """The same where nodes cost nothing, and each switch beyond a job's first a tenth of its progress."""
    made = [problem(seed, jobs=12, nodes=10, leaves=5) for seed in range(10)]
    cases = [replace(one, spread=[0.0] * 12) for one in made]
    gains = [value(one, evolve(one, relative=False)) / value(one, one.exact) - 1 for one in cases]
    assert min(gains) >= 0.0 and sum(gains) / len(gains) > 0.01


def test_a_job_stays_under_its_switch_where_another_costs_more_than_it_brings() -> None:
    """Four GPUs more bring 5 %: taken where they are under the job's own switch, left where they are under another, and
    taken there, too, where switches do not count."""
    row = [Choice(4, 1.0, 0, 1.0), Choice(8, 1.05, 0, 1.05)]
    taken = {}
    for other, cost in (("leaf1", 0.1), ("leaf2", 0.1), ("leaf2", 0.0)):
        over = {"n1": "leaf1", "n2": other}
        layout = Layout([{"n1": 0, "n2": 4}], [NODE], [{4: {"n1": 4}}], switches=over, switch_cost=cost)
        one = Problem(["1"], [row], [4], [0], [8], (), [1], [1.0], [0.1], [[1, 2]], layout)
        taken[other, cost] = evolve(one, relative=False)
    assert taken == {("leaf1", 0.1): [1], ("leaf2", 0.1): [0], ("leaf2", 0.0): [1]}


def test_a_round_of_many_jobs_does_not_wait() -> None:
    """The more jobs and switches the shorter the search, and none where one generation would be too long: the exact
    plan, then."""
    assert [generations_for(jobs, switches=8) for jobs in (10, 100, 1000, 1001)] == [80, 25, 2, 0]
    assert [generations_for(jobs, switches=128) for jobs in (10, 100, 1000)] == [50, 5, 0]
    assert [generations_for(jobs) for jobs in (10, 100, 1000, 1001)] == [80, 50, 5, 0]
    one = replace(problem(4), layout=Layout())
    assert evolve(one, generations=0, relative=False) == list(one.exact)


def test_everybody_stays_where_too_little_is_gained() -> None:
    """As with the exact plan: nothing is moved for less than the least gain. With logarithms, a relative gain."""
    one = problem(11)
    assert evolve(one, relative=True) != indices(ChoiceArrays(one), ChoiceArrays(one).present)
    patient = replace(one, layout=replace(one.layout, min_gain=1e6))
    arrays = ChoiceArrays(patient)
    assert within(arrays, arrays.present)
    assert evolve(patient, relative=True) == indices(arrays, arrays.present)


def test_the_least_gain_is_a_jobs_own_whatever_its_weight() -> None:
    """A job that counts as fifty is not moved for a fiftieth of the least gain; for all of it, it is."""
    moved = {}
    for own in (0.002, 0.1):
        row = [Choice(1, 0.0, 0, 1.0), Choice(2, 50 * own, 0, 1.0 + own)]
        layout = Layout([{"n1": 3}], [NODE], [{1: {"n1": 1}}], min_gain=0.05)
        one = Problem(["1"], [row], [1], [0], [4], (), [1], [50.0], [0.0], (), layout)
        moved[own] = evolve(one)
    assert moved == {0.002: [0], 0.1: [1]}


def test_moves_beyond_a_rounds_are_avoided_where_they_bring_little() -> None:
    """Ten jobs that would each gain 1 % by another GPU, two moves a round: no more than two are planned."""
    row = [Choice(1, 1.0, 0, 1.0), Choice(2, 1.01, 0, 1.01)]
    free = {f"n{node}": NODE for node in range(20)}
    held = [{1: {f"n{j}": 1}} for j in range(10)]
    layout = Layout([free], [NODE], held, most_moves=2)
    one = Problem(
        [str(j) for j in range(10)],
        [row] * 10,
        [1] * 10,
        [0] * 10,
        [20],
        (),
        [1] * 10,
        [1.0] * 10,
        [0.0] * 10,
        (),
        layout,
    )
    assert sum(evolve(one, relative=False)) == 2
    assert sum(evolve(replace(one, layout=replace(layout, most_moves=0)), relative=False)) == 10


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 2), st.sampled_from([0, 1, 2, 5]))
def test_placing_is_what_its_docstring_says(seed: int, pools: int, leaves: int) -> None:
    """The arrays' costs of random plans against the rule carried out node by node, with the switches that the planner
    itself would choose from."""
    one = problem(seed, pools=pools, leaves=leaves)
    arrays, rng = ChoiceArrays(one), np.random.default_rng(seed)
    people = arrays.start + (rng.random((4, len(arrays.length))) * arrays.length).astype(np.int64)
    lost = Placing(one, arrays).lost(people)
    for person, own in zip(people, lost, strict=True):
        assert own.tolist() == pytest.approx(by_hand(one, indices(arrays, person)))


def by_hand(one: Problem, plan: Sequence[int]) -> list[float]:
    """The share of its progress that each job loses."""
    free = {name: gpus for pool in one.layout.free for name, gpus in pool.items()}
    home = {name: pool for pool, names in enumerate(one.layout.free) for name in names}
    over = {name: one.layout.switches.get(name, "") for name in free}
    where, shared, growing = list[list[str]](), [0] * len(plan), list[tuple[float, int, int]]()
    missing = [0] * len(plan)
    for j, (row, i) in enumerate(zip(one.choices, plan, strict=True)):
        now = one.layout.held[j][one.present[j]]
        kept = one.layout.held[j].get(row[i].gpus)
        where.append([*(now if kept is None else kept)])
        if kept is None:
            before = next((o.speedup for o in row if o.gpus == one.present[j] and o.speedup > 0), 1.0)
            growing.append((-row[i].speedup / before, j, row[i].gpus - one.present[j]))
            continue
        for name, gpus in now.items():
            free[name] += gpus - kept.get(name, 0)
    for _, j, more in sorted(growing):
        pool = {name: gpus for name, gpus in free.items() if home[name] == one.pools[j]}
        own = {over[name] for name in where[j]}
        room = Counter[str]()
        for name, gpus in pool.items():
            room[over[name]] += gpus
        ways = [{*own, *way} for way in few_switches(room, own, more)] or [{*over.values()}]
        tried = [taken({n: g for n, g in pool.items() if over[n] in way}, more, over, own) for way in ways]
        costs = [len(taking) + lacks + len(way - own) for (taking, lacks), way in zip(tried, ways, strict=True)]
        taking, missing[j] = tried[costs.index(min(costs))]
        for name, gpus in taking.items():
            shared[j] += free[name] < NODE
            free[name] -= gpus
        where[j] += taking
    lost = []
    for j, (row, i) in enumerate(zip(one.choices, plan, strict=True)):
        beyond = max(0, len(where[j]) + missing[j] - one.nodes[j][i])
        switches = max(0, len({over[name] for name in where[j]}) - 1) * one.layout.switch_cost
        lost.append(min(0.95, 0.1 * beyond + SHARED * shared[j] + switches) if row[i].gpus else 0.0)
    return lost


def taken(free: Where, more: int, over: dict[str, str], own: set[str]) -> tuple[Where, int]:
    """(GPUs by node that a growth takes, GPUs that no node has): the largest shares, its own switches first."""
    names, found = sorted(free, key=lambda name: (over[name] not in own, over[name], name)), dict[str, int]()
    for size in range(NODE, 0, -1):
        for name in [name for name in names if free[name] == size][: more // size]:
            found[name], more = size, more - size
    fits = [name for name in names if free[name] >= more and name not in found]
    if more and fits:
        found[min(fits, key=lambda name: free[name])], more = more, 0
    return found, more
