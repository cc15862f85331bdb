"""The order of waiting jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.services.queue.order import AGES_S, need, site_factor

SECONDS = st.floats(1, 1e7)
GPUS = st.integers(1, 512)


@given(SECONDS, GPUS, SECONDS, GPUS)
def test_who_needs_less_is_never_behind(first: float, gpus: int, second: float, others: int) -> None:
    """Both came at the same time."""
    mine, theirs = need(first, gpus, 0), need(second, others, 0)
    assert (site_factor(mine, 1000) >= site_factor(theirs, 1000)) or mine > theirs


@given(SECONDS, GPUS, st.floats(0, 1e8), st.integers(1, 10**9))
def test_the_factor_is_bounded_and_grows_with_the_wait(left: float, gpus: int, waited: float, most: int) -> None:
    """From 0 to the most that the admin allows."""
    now, later = (site_factor(need(left, gpus, at), most) for at in (waited, waited + 86400))
    assert 0 <= now <= later <= most


def test_nobody_starves() -> None:
    """A month of 8 GPUs that has waited for 14 weeks goes before an hour of one GPU that has just come."""
    assert need(30 * 86400.0, 8, 82 * AGES_S) < need(3600, 1, 0)
    assert need(86400.0, 8, AGES_S) == need(86400.0, 4, 0)
