"""Where growths are placed, against the plain rule that looks at every node each time, on random clusters."""

from __future__ import annotations

import random
from collections.abc import Collection

from slurm_elastic.daemon.capacity.ledger import Amount, IdleNodes, Ledger
from slurm_elastic.daemon.capacity.placement import (
    ShapeTemplate,
    place,
    take,
)


def by_looking_everywhere(
    ledger: Ledger, gpus: int, template: ShapeTemplate, nodes: Collection[str], soon: bool, near: Collection[str]
) -> dict[str, int] | None:
    """GPUs by node: whole nodes, the fullest free first, then the rest where it leaves least over."""
    free = {n: template.most(ledger.total(n) if soon else ledger.now[n]) for n in nodes if ledger.usable(n)}
    free = {name: most for name, most in free.items() if most > 0}
    taken: dict[str, int] = {}
    left = gpus
    for name in sorted(free, key=lambda n: (-free[n], n not in near, n)):
        if left >= free[name]:
            taken[name] = free[name]
            left -= free[name]
    if left:
        spare = [n for n in free if n not in taken and free[n] >= left]
        if not spare:
            return None
        taken[min(spare, key=lambda n: (free[n], n not in near, n))] = left
    return taken


def amount(chance: random.Random, most: int) -> Amount:
    return Amount(chance.randint(0, most), chance.choice((0, 3, 8, 16)), chance.choice((0, 4000, 8000)))


def sequence(chance: random.Random) -> list[bool]:
    """Growths, takes, releases and copies of one random cluster, each growth compared: whether each was placed."""
    names = [f"n{i}" for i in range(chance.randint(1, 24))]
    gpus = chance.choice((1, 4, 8))
    usable = [name for name in names if chance.random() < 0.9]
    ledger = Ledger({name: amount(chance, gpus) for name in usable})
    sets = [frozenset(chance.sample(names, chance.randint(0, len(names)))) for _ in range(3)] + [frozenset(names)]
    placed = []
    for _ in range(60):
        template = ShapeTemplate(
            "main", "a", "q", "a100", chance.choice((0.0, 1.0, 2.5)), chance.choice((0.0, 500.0, 1000.0))
        )
        nodes, soon, wanted = chance.choice(sets), chance.random() < 0.4, chance.randint(1, 3 * gpus)
        near = set(chance.sample(names, len(names) // 3)) if chance.random() < 0.5 else set[str]()
        expected = by_looking_everywhere(ledger, wanted, template, nodes, soon, near)
        shapes = place(ledger, wanted, template, nodes, soon, near)
        assert (None if shapes is None else {n: s.gpus_per_node for s in shapes for n in s.node_list}) == expected
        placed.append(shapes is not None)
        if shapes is not None and chance.random() < 0.4:
            take(ledger, shapes)
        if chance.random() < 0.6:
            ledger.release(chance.choice(names), amount(chance, 2))
        if usable and chance.random() < 0.3:
            ledger.take(chance.choice(usable), amount(chance, 2))
        if chance.random() < 0.1:
            ledger = ledger.copy()
    return placed


def test_growths_go_where_the_plain_rule_puts_them() -> None:
    """Over any sequence of growths, takes, releases and copies, on any sets of nodes, with what lies near or not, now
    or soon, the sorted nodes give the placement that looking at every node gives, or none where there is none."""
    placed = [done for seed in range(100) for done in sequence(random.Random(seed))]
    assert 1000 < sum(placed) < 5000  # both outcomes were really exercised


def test_a_copy_is_used_up_by_itself() -> None:
    """What is tried on a copy of the ledger changes nothing in what the ledger itself answers afterwards."""
    ledger = Ledger({"n1": Amount(4, 16, 8000), "n2": Amount(2, 16, 8000)})
    template = ShapeTemplate("main", "", "", "a100", 1.0, 0.0)
    before = place(ledger, 4, template, ledger.now)
    assert before is not None
    trial = ledger.copy()
    take(trial, before)
    assert place(trial, 4, template, ledger.now) is None
    assert place(ledger, 4, template, ledger.now) == before


def test_placing_costs_what_it_takes() -> None:
    """Of a thousand alike idle nodes only those are looked at that a growth takes, and the node after."""
    looked: list[str] = []

    class Seen(str):
        __slots__ = ()

        def __lt__(self, other: str) -> bool:
            looked.append(self)
            return str.__lt__(self, other)

    idle = IdleNodes((Seen(f"n{i:04d}"), 8) for i in range(1000))
    looked.clear()
    found = idle.of((8,))
    assert [next(found), next(found)] == ["n0000", "n0001"]
    idle.put("n0000", None)
    assert next(idle.of((8,))) == "n0001" and idle.amounts == {8}
    assert len(looked) < 40
