"""The route table: what a client asks for, made from it."""

from __future__ import annotations

import pytest

from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.api.routes import AcctQuery, PlanQuery, ResizeQuery, Route, WindowQuery


@pytest.mark.parametrize(
    ("route", "job_id", "query", "target"),
    [
        (routes.STATUS, None, None, "/v1/jobs"),
        (routes.EXPLAIN, 7, None, "/v1/jobs/7/explain"),
        (routes.RESIZE, 7, ResizeQuery(3, 50.0), "/v1/jobs/7/resize?after=3&wait=50.0"),
        (routes.RESIZE, 7, ResizeQuery(), "/v1/jobs/7/resize"),
        (routes.ACCT, None, AcctQuery(0.0, None, "a b", (7, 8)), "/v1/acct?start=0.0&user=a+b&job=7%2C8"),
        (routes.PLAN, None, PlanQuery(1), "/v1/plan?dry_run=1"),
        (routes.USAGE, None, WindowQuery(), "/v1/report"),
    ],
)
def test_a_request_has_what_differs_from_the_defaults(
    route: Route, job_id: int | None, query: object, target: str
) -> None:
    """Path and parameters as the daemon reads them; what is at its default is left out."""
    assert route.target(job_id, query) == target


def test_every_address_is_in_the_table_once() -> None:
    """Two routes of one address, or two of one name, would hide each other."""
    assert len({(route.method, route.path) for route in routes.ROUTES}) == len(routes.ROUTES)
    assert len({route.name for route in routes.ROUTES}) == len(routes.ROUTES)
