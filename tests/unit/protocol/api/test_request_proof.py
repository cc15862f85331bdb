"""A proof of a job's request counts for that request, once, and for one registration."""

from __future__ import annotations

import random

from slurm_elastic.protocol.api.proofs import WINDOW, JobKey, JobProofs


def test_a_proof_is_for_one_request_of_one_registration() -> None:
    """Not for another address or body, nor by another key or token."""
    taken = JobProofs(b"k", "t")
    right = JobKey(b"k", "t").prove(b"POST /a x")
    for wrong in (right, JobKey(b"j", "t").prove(b"POST /b x"), JobKey(b"k", "u").prove(b"POST /b x"), "", "p.1.x"):
        assert not taken.take(wrong, b"POST /b x")
    assert not JobProofs(b"k", "u").take(right, b"POST /a x")
    name, number, code = right.split(".")
    assert not taken.take(f"{name}.{int(number) + 1}.{code}", b"POST /a x")
    assert taken.named(right) and not taken.named(name)
    assert taken.take(right, b"POST /a x") and not taken.take(right, b"POST /a x")


def test_each_number_counts_once_in_whatever_order() -> None:
    """Two threads overtake each other; what is very late is refused, and a leap costs nothing."""
    key, taken = JobKey(b"k", "t"), JobProofs(b"k", "t")
    proofs = [key.prove(b"r") for _ in range(20 * WINDOW)]
    order = sorted(range(len(proofs)), key=lambda place: place + random.uniform(0, WINDOW - 2))
    assert all(taken.take(proofs[place], b"r") for place in order)
    assert not any(taken.take(proof, b"r") for proof in proofs)
    leap, late = 10**17, key.prove(b"r")
    assert taken.take(f"{taken.name}.{leap}.{key.code(str(leap), b'r')}", b"r")
    assert not taken.take(late, b"r")
    assert taken.take(f"{taken.name}.{leap - 1}.{key.code(str(leap - 1), b'r')}", b"r")
