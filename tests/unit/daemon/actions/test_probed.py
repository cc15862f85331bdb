"""What a probe found rules out what a site refuses as such, and nothing that was only in the way at the time."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.actions.refusals import MOST_S, companion_by, granted_s, no_companions, refused
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.messages import NOT_TRIED, REFUSED, WORKS, Tried


def found(**tried: str | Tried) -> dict[str, Tried]:
    """By name: "works", "not tried", or the words of a refusal."""
    return {
        name: Tried(name, *((one,) if one in (WORKS, NOT_TRIED) else (REFUSED, str(one))))
        for name, one in tried.items()
    }


@pytest.mark.parametrize(
    ("tried", "by", "none"),
    [
        ({}, "", ""),
        ({"salloc": WORKS, "sbatch": WORKS}, "", ""),
        ({"salloc": "use sbatch", "sbatch": WORKS}, "sbatch", ""),
        ({"salloc": "use sbatch", "sbatch": NOT_TRIED}, "", ""),
        ({"salloc": "use sbatch", "sbatch": "not from nodes"}, "", "not from nodes"),
        ({"salloc": WORKS, "sbatch": "not from nodes"}, "", ""),
        ({"salloc": "Requested nodes are busy", "sbatch": WORKS}, "", ""),
        ({"salloc": "use sbatch", "sbatch": "Job violates accounting/QOS policy (job submit limit)"}, "", ""),
    ],
    ids=["nothing", "both", "by sbatch", "not both tried", "neither", "by salloc", "busy", "a full limit"],
)
def test_companions(tried: dict[str, str], by: str, none: str) -> None:
    """In which form they can be had, and whether at all."""
    assert (companion_by(found(**tried)), no_companions(found(**tried))) == (by, none)


def test_a_users_own_findings_come_before_the_sites() -> None:
    """But for what the user has not tried; in other partitions, and for others, nothing is known."""
    site = Site(
        probed={
            ("", "main"): found(salloc="no", shrink="never", requeue=WORKS),
            ("ada", "main"): found(salloc=WORKS, shrink=NOT_TRIED, requeue="not yours"),
        }
    )
    own, others = site.found("ada", "main"), site.found("bob", "main")
    assert [refused(own, name) for name in ("salloc", "shrink", "requeue")] == ["", "never", "not yours"]
    assert [refused(others, name) for name in ("salloc", "shrink", "requeue")] == ["no", "never", ""]
    assert site.found("ada", "low") == {}


def test_the_first_form_says_how_long_a_grant_takes() -> None:
    """Else the other one; else it is not known."""
    slow = {"sbatch": Tried("sbatch", WORKS, "", 40.0)}
    assert granted_s(slow) == 40.0 and granted_s(slow | {"salloc": Tried("salloc", WORKS, "", 2.0)}) == 2.0
    assert granted_s(found(salloc="no")) == 0.0
    assert granted_s({"salloc": Tried("salloc", WORKS, "", 86400.0)}) == MOST_S
