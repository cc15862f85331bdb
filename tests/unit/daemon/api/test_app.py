"""The API: who may do what, what is refused with which status and sentence, and waiting for a resize.

Callers are named by a test header here; MUNGE itself is in tests/cluster/test_auth.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from api_harness import ADA, BASE, BOB, REGISTRATION, REPORT, RESIZE, ROOT, FakeController, Named, job, proving
from fresh_store import fresh_store
from starlette.applications import Starlette
from starlette.testclient import TestClient

from slurm_elastic.daemon import reports
from slurm_elastic.daemon.api import callers, requests
from slurm_elastic.daemon.api.app import _check_size, create_app
from slurm_elastic.daemon.api.requests import Refused
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.api.munge import MungeError
from slurm_elastic.protocol.api.proofs import JobKey
from slurm_elastic.protocol.codec import MAX_BODY, VERSION, to_json
from slurm_elastic.protocol.errors import SlurmUnreachable, StoreError, TooOften
from slurm_elastic.protocol.messages import Happening, Phase, Rate, Registration, Reports, Unreached


@dataclasses.dataclass
class World:
    store: Store
    controller: FakeController
    app: Starlette
    http: TestClient

    def token(self) -> str:
        """A token of job 7, by way of registration."""
        answer = self.http.post("/v1/jobs/7/register", content=REGISTRATION, headers=as_uid(ADA))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["token"])


def as_uid(uid: int) -> dict[str, str]:
    return {"Authorization": f"Test {uid}"}


def with_token(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        store.jobs.upsert_all([job(7, ADA, "ada"), job(8, BOB, "bob")])
        for job_id in (7, 8):
            store.allocations.note(job_id, 1, (dataclasses.replace(BASE, slurm_job_id=job_id),), 64, 10.0)
        controller = FakeController()
        settings = Settings(requests_per_s=5)
        app = create_app(store, controller, settings, Named(settings))
        with TestClient(app, raise_server_exceptions=False) as http:
            yield World(store, controller, app, proving(http))


def test_health_needs_no_credential(world: World) -> None:
    """Anyone may see that the daemon is there and in which mode."""
    health = world.http.get("/v1/health").json()
    assert (health["status"], health["version"], health["mode"], health["rounds"]) == ("ok", VERSION, "review", 1)


def test_registration_gives_a_token_for_that_job_alone(world: World) -> None:
    """The owner by Slurm's word gets a token; it works for its job and for no other."""
    token = world.token()
    assert world.controller.calls[0][:2] == ("registered", 7)
    body = to_json(Reports((REPORT,)))
    assert world.http.post("/v1/jobs/7/reports", content=body, headers=with_token(token)).status_code == 202
    assert world.store.reports.last(7) == REPORT
    refused = world.http.post("/v1/jobs/8/reports", content=body, headers=with_token(token))
    assert refused.status_code == 401 and "no such registration of job 8" in refused.json()["error"]
    assert world.store.reports.last(8) is None


@pytest.mark.parametrize(("uid", "job_id", "status"), [(BOB, 7, 403), (ADA, 8, 403), (ROOT, 7, 403), (ADA, 99, 404)])
def test_nobody_registers_for_another(world: World, uid: int, job_id: int, status: int) -> None:
    """Not a second user, not even root: the supervisor runs as the job's owner or it is not one."""
    answer = world.http.post(f"/v1/jobs/{job_id}/register", content=REGISTRATION, headers=as_uid(uid))
    assert answer.status_code == status and world.controller.calls == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs/7/register"),
        ("POST", "/v1/jobs/7/reports"),
        ("POST", "/v1/jobs/7/phases"),
        ("GET", "/v1/jobs/7/resize"),
        ("POST", "/v1/jobs/7/pin"),
        ("GET", "/v1/hosts"),
        ("POST", "/v1/hosts/clear"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/7"),
        ("GET", "/v1/jobs/7/explain"),
        ("GET", "/v1/jobs/7/events"),
        ("GET", "/v1/acct"),
        ("GET", "/v1/plan"),
    ],
)
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic eDp5"}])
def test_nothing_is_told_to_nobody(world: World, method: str, path: str, header: dict[str, str]) -> None:
    """Without a credential, or with one of another kind, all but health answers 401 and says what it takes."""
    answer = world.http.request(method, path, headers=header, content=b"{}" if method == "POST" else None)
    assert answer.status_code == 401 and answer.json()["error"]
    assert "MUNGE" in answer.headers["www-authenticate"]


OLDER = REGISTRATION.replace(b'"version":%d' % VERSION, b'"version":4')
"""A supervisor of 0.2, which sends its token."""


@pytest.mark.parametrize("sealed", [False, True])
def test_a_supervisor_of_0_2_is_taken_where_it_ran_before(world: World, tmp_path: Path, sealed: bool) -> None:
    """By plain HTTP only if its job registered before the upgrade; by TLS always. A token that was heard while the
    daemon was stopped is good for nothing when it is back; a supervisor of today ends all tokens of its job."""
    url, report = "https://x" if sealed else "http://x", to_json(Reports((REPORT,)))
    heard = world.store.tokens.mint(7, ADA)

    def started(**values: Any) -> TestClient:
        settings = Settings(**values)
        return TestClient(create_app(world.store, world.controller, settings, Named(settings)), base_url=url)

    def registered(http: TestClient, job_id: int, registration: bytes = OLDER) -> httpx.Response:
        return http.post(
            f"/v1/jobs/{job_id}/register", content=registration, headers=as_uid(ADA if job_id == 7 else BOB)
        )

    http = started()

    def reported(token: str) -> int:
        return http.post("/v1/jobs/7/reports", content=report, headers=with_token(token)).status_code

    assert reported(heard) == (202 if sealed else 401)
    fresh = registered(http, 7)
    assert fresh.status_code == 200 and reported(fresh.json()["token"]) == 202
    new = registered(http, 8)  # began after the upgrade
    assert new.status_code == (200 if sealed else 403)
    assert (
        sealed or "job 8 has a slurm-elastic whose requests prove nothing, and did not run when" in new.json()["error"]
    )
    http = started(accept_tokens=False)
    assert reported(fresh.json()["token"]) == 401
    ended = registered(http, 7)
    assert ended.status_code == 403 and "accept_tokens is false here" in ended.json()["error"]
    http = started()
    today = registered(http, 7, REGISTRATION).json()["token"]
    assert [reported(token) for token in (heard, fresh.json()["token"], today)] == [401] * 3
    assert proving(http).post("/v1/jobs/7/reports", content=report, headers=with_token(today)).status_code == 202
    assert registered(http, 7).status_code == (200 if sealed else 403)


def test_nothing_is_taken_by_a_daemon_that_was_started_again(world: World) -> None:
    """Whatever was said before, to the daemon or to who had its port meanwhile: the job registers again first."""
    headers = with_token(world.token())
    assert world.http.get("/v1/jobs/7/resize", headers=headers).status_code == 204
    settings = Settings()
    again = TestClient(create_app(world.store, world.controller, settings, Named(settings)))
    again.event_hooks = world.http.event_hooks
    refused = again.get("/v1/jobs/7/resize", headers=headers)
    assert refused.status_code == 401 and "register the job again" in refused.json()["error"]


def test_a_token_dies_with_its_job(world: World) -> None:
    """After the job's end its token is 401: register again, if it still runs."""
    token = world.token()
    world.http.get("/v1/jobs/7/resize", headers=with_token(token))
    world.store.jobs.end(7, "COMPLETED", 50.0)
    assert world.http.get("/v1/jobs/7/resize", headers=with_token(token)).status_code == 401


def reported(**change: float) -> bytes:
    """A message of one report that differs so from an ordinary one."""
    return to_json(Reports((dataclasses.replace(REPORT, **change),)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "is not an object"),
        (b'{"reports": [{"at": 1}]}', 400, "field generation is missing"),
        (b'{"reports": NaN}', 400, "not a list"),
        (
            to_json(Reports((dataclasses.replace(REPORT, step_time_median_s=1e-300),))),
            400,
            "step_time_median_s: 1e-300 is not",
        ),
        (
            to_json(Reports((dataclasses.replace(REPORT, gpus=0),))),
            400,
            "gpus: 0 is not accepted; accepted: a whole number, 1 to",
        ),
        (b"[" * 100_000, 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"x" * (MAX_BODY + 1), 413, "accepted: at most"),
    ],
)
def test_a_malformed_report_is_refused(world: World, body: bytes, status: int, sentence: str) -> None:
    """One sentence naming what is wrong; nothing of the body is stored."""
    answer = world.http.post("/v1/jobs/7/reports", content=body, headers=with_token(world.token()))
    assert answer.status_code == status and sentence in answer.json()["error"]
    assert world.store.reports.last(7) is None


def test_a_body_without_a_length_is_bounded_too(world: World) -> None:
    """A caller who streams for ever is cut off at the limit."""

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 65536

    answer = world.http.post("/v1/jobs/7/reports", content=chunks(), headers=with_token(world.token()))
    assert answer.status_code == 413


def test_a_slow_body_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who never ends the body gets 408."""
    monkeypatch.setattr(requests, "BODY_TIMEOUT_S", 0.05)
    headers = {"Authorization": f"Proof {JobKey(b'', world.token()).prove(b'not known yet')}"}

    async def never() -> Any:
        yield b"{"
        await asyncio.sleep(30)

    async def send() -> httpx.Response:
        # httpx's transport hands the body over piece by piece, as a slow network would.
        async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://x") as client:
            return await client.post("/v1/jobs/7/reports", content=never(), headers=headers)

    assert asyncio.run(send()).status_code == 408


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v1/acct?start=nan", "start=nan is not accepted"),
        ("/v1/acct?start=-5", "accepted: a number from 0"),
        ("/v1/acct?start=1_0", "not accepted"),
        ("/v1/acct?begin=5", "parameter begin is not known here; accepted: start, end, user, job"),
        ("/v1/acct?start=1&start=2", "start is given twice"),
        ("/v1/acct?job=7,x", "accepted: up to 1000 job ids"),
        ("/v1/jobs/7/events?limit=0", "limit=0 is not accepted"),
        ("/v1/jobs?x=1", "accepted: none"),
    ],
)
def test_a_wrong_parameter_is_refused(world: World, path: str, sentence: str) -> None:
    """Parameters are strict: unknown, doubled or out of range is 400 with what is accepted."""
    answer = world.http.get(path, headers=as_uid(ADA))
    assert answer.status_code == 400 and sentence in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nowhere", 404), ("GET", "/", 404), ("GET", "/v1/jobs/x", 404), ("DELETE", "/v1/jobs", 405),
     ("GET", "/v1/jobs/99999999999999", 404), ("GET", "/v1/jobs/0", 404), ("GET", "/v1/jobs/4000", 404)],
)  # fmt: skip
def test_what_is_not_there(world: World, method: str, path: str, status: int) -> None:
    """Unknown addresses, methods and jobs are JSON sentences as well."""
    answer = world.http.request(method, path, headers=as_uid(ADA))
    assert answer.status_code == status and answer.json()["error"]


def test_viewers_see_their_own(world: World) -> None:
    """One's own jobs in full; of another's only id, state and GPUs; an admin sees all."""
    rows = {row["job_id"]: row for row in world.http.get("/v1/jobs", headers=as_uid(ADA)).json()["jobs"]}
    assert rows[7]["name"] == "secret-name" and rows[7]["own"]
    assert {key for key, value in rows[8].items() if value} == {"job_id", "state", "gpus"}
    assert rows[8]["gpus"] == 4 and not rows[8]["own"]
    whole = world.http.get("/v1/jobs", headers=as_uid(ROOT)).json()["jobs"]
    assert [row["name"] for row in whole] == ["secret-name"] * 2
    one = world.http.get("/v1/jobs/8", headers=as_uid(ADA)).json()
    assert one["job_id"] == 8 and one["name"] is None and one["node_list"] is None
    mine, others = world.http.get("/v1/acct", headers=as_uid(ADA)).json()["allocations"]
    assert mine["user"] == "ada" and others["user"] is None and others["node_list"] is None


def test_who_names_too_many_jobs_that_do_not_exist_has_to_wait(world: World) -> None:
    """It is said with the time to come back, and asked for each user."""
    asked: list[int] = []

    def owner(job_id: int, asker: int) -> None:
        asked.append(asker)
        raise TooOften("too many jobs that Slurm does not list")

    world.controller.owner = owner  # type: ignore[method-assign]
    answer = world.http.post("/v1/jobs/1000/register", content=REGISTRATION, headers=as_uid(ADA))
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0 and asked == [ADA]


def test_a_task_of_an_array_is_asked_for_by_its_name(world: World) -> None:
    """As Slurm names it; its record has both names, and one that never was is told by its name."""
    row = world.store.jobs.get(7)
    assert row is not None
    world.store.jobs.upsert(dataclasses.replace(row, task_name="5_12"))
    found = world.http.get("/v1/jobs/5_12", headers=as_uid(ADA)).json()
    assert (found["job_id"], found["task_name"]) == (7, "5_12")
    assert world.http.get("/v1/jobs/5_12/events", headers=as_uid(ADA)).status_code == 200
    unknown = world.http.get("/v1/jobs/5_13", headers=as_uid(ADA))
    assert unknown.status_code == 404 and "5_13" in unknown.json()["error"]


@pytest.mark.parametrize("path", ["explain", "events"])
def test_anothers_reasons_are_private(world: World, path: str) -> None:
    """Why a job has what it has, and what was done to it, is for its owner and admins."""
    assert world.http.get(f"/v1/jobs/8/{path}", headers=as_uid(ADA)).status_code == 403
    assert world.http.get(f"/v1/jobs/8/{path}", headers=as_uid(BOB)).status_code == 200
    assert world.http.get(f"/v1/jobs/8/{path}", headers=as_uid(ROOT)).status_code == 200


def test_plans_are_redacted(world: World) -> None:
    """The last plan and a dry one show of another's job only its GPUs."""
    decision = DecisionRow(8, 1.0, 4, 2, 64, 64, "shrink_share", 1.0, 0.1)
    world.store.decisions.save(1.0, [decision])
    (stored,) = world.http.get("/v1/plan", headers=as_uid(ADA)).json()["jobs"]
    assert (stored["gpus_to"], stored["reason"], stored["user"]) == (2, None, None)
    mine, others = world.http.get("/v1/plan?dry_run=1", headers=as_uid(ADA)).json()["jobs"]
    assert mine["reason"] == "grow_idle" and others["reason"] is None and others["gpus_to"] == 2
    assert world.http.get("/v1/plan", headers=as_uid(ADA)).json()["notes"] == []
    [note] = world.http.get("/v1/plan", headers=as_uid(ROOT)).json()["notes"]
    assert note == {"service": "power", "about": "node n3", "text": "nobody wants it"}
    everything = world.http.get("/v1/plan?dry_run=1", headers=as_uid(ROOT)).json()["jobs"]
    assert [row["reason"] for row in everything] == ["grow_idle", "grow_idle"]


@pytest.mark.parametrize("digits", [20, 21, 5000])
def test_a_job_id_of_any_length_is_a_job_that_is_not_there(world: World, digits: int) -> None:
    """Nobody fills the daemon's log with tracebacks by asking for absurd numbers."""
    answer = world.http.get(f"/v1/jobs/{'1' * digits}", headers=as_uid(ADA))
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


@pytest.mark.parametrize(("path", "body"), [("register", REGISTRATION), ("pin", b'{"gpus": 2}')])
def test_where_slurm_hides_jobs_anothers_is_as_none(world: World, path: str, body: bytes) -> None:
    """Nobody finds out by trying which job ids are others': the answer is that of an id that is nobody's."""
    hidden, missing = (
        world.http.post(f"/v1/jobs/{job_id}/{path}", content=body, headers={"Authorization": "Test 1000 private"})
        for job_id in (8, 99)
    )
    assert hidden.status_code == missing.status_code == 404
    assert hidden.text.replace("8", "99") == missing.text
    assert world.http.post(f"/v1/jobs/8/{path}", content=body, headers=as_uid(ADA)).status_code == 403


def test_pin(world: World) -> None:
    """The owner or an admin pins to a size that the job accepts; it is recorded, and a round comes soon."""

    def pin(uid: int, gpus: object) -> httpx.Response:
        return world.http.post("/v1/jobs/7/pin", content=json.dumps({"gpus": gpus}), headers=as_uid(uid))

    assert pin(ADA, 4).json() == {"job_id": 7, "pinned": 4, "out_of_reach": None} and world.store.jobs.pinned(7) == 4
    assert pin(ADA, 6).json()["out_of_reach"] == "it can't come to that; sizes in reach: 2, 4"
    assert pin(ADA, 4).status_code == 200 and world.store.jobs.pinned(7) == 4
    assert pin(BOB, 2).status_code == 403 and world.store.jobs.pinned(7) == 4
    assert pin(ROOT, None).status_code == 200 and world.store.jobs.pinned(7) is None
    assert "nearest: 2, 4, 6" in pin(ADA, 3).json()["error"]
    for wrong in (0, -1, 1.5, True, "4", 10**9):
        assert pin(ADA, wrong).status_code == 400
    kinds = [(event.kind, event.who) for event in world.store.events.of(7)]
    assert kinds == [("pinned", f"uid:{ADA}")] * 3 + [("unpinned", f"uid:{ROOT}")]
    assert ("wake", "pin") in world.controller.calls
    del world.controller.owners[7]
    assert "has ended" in pin(ADA, 4).json()["error"]


@pytest.mark.parametrize(
    ("request_text", "gpus", "said"),
    [
        ("elastic:gpus=1-8,batch=8", 3, "no batch that the job accepts is shared out evenly .*; nearest: 1, 2, 4$"),
        ("elastic:gpus=1-8,batch=12-14,slice=2", 5, "no batch that the job accepts .*; nearest: 3, 6, 7$"),
        ("elastic:gpus=2-8,batch=64,step=2", 3, "not a size that the job accepts .*; nearest: 2, 4, 8$"),
        ("elastic:gpus=1-8,batch=12", 4, ""),
    ],
)
def test_a_pin_to_a_size_that_no_batch_comes_out_at_is_refused(request_text: str, gpus: int, said: str) -> None:
    """Such a size is never taken, however long the pin waits for it."""
    with pytest.raises(Refused, match=said) if said else nullcontext():
        _check_size(request_text, gpus)


def test_hosts_that_reach_each_other_again(world: World) -> None:
    """An admin sees and clears the pairs of everybody, a user those of the own jobs; it is recorded with who asked, and
    a round comes soon. What nobody knows of is 404, with the command that lists what is known."""
    for user in ("ada", "bob"):
        for _ in range(3):
            world.store.host_pairs.note(user, [Unreached("n2", "n3", "10.0.0.3")], steady_now())

    def seen(uid: int) -> list[tuple[str, bool]]:
        pairs = world.http.get("/v1/hosts", headers=as_uid(uid)).json()["pairs"]
        return [(pair["user"], pair["again_at"] > steady_now()) for pair in pairs]

    def clear(uid: int, host: str, other: str) -> httpx.Response:
        body = json.dumps({"host": host, "other": other})
        return world.http.post("/v1/hosts/clear", content=body, headers=as_uid(uid))

    assert seen(ADA) == [("ada", True)] and seen(ROOT) == [("ada", True), ("bob", True)] and seen(4711) == []
    assert clear(ADA, "n3", "n4").status_code == clear(4711, "n3", "n2").status_code == 404
    assert "selastic hosts" in clear(ADA, "n4", "").json()["error"]
    assert [pair["user"] for pair in clear(ADA, "n3", "n2").json()["pairs"]] == ["ada"]
    assert seen(ADA) == [] and seen(ROOT) == [("bob", True)]
    assert clear(ROOT, "n2", "").status_code == 200 and seen(ROOT) == []
    assert [(event.kind, event.who, event.detail) for event in world.store.events.of(0)] == [
        ("hosts_cleared", f"uid:{ADA}", {"host": "n3", "other": "n2", "users": ["ada"]}),
        ("hosts_cleared", f"uid:{ROOT}", {"host": "n2", "other": "", "users": ["bob"]}),
    ]
    assert world.controller.calls.count(("wake", "hosts")) == 2


def test_phases_are_the_jobs_own(world: World) -> None:
    """A phase of another job's resize is refused before the daemon hears of it."""
    headers = with_token(world.token())
    own = world.store.resizes.begin(dataclasses.replace(RESIZE, id=0), 1.0).id
    others = world.store.resizes.begin(dataclasses.replace(RESIZE, id=0, job_id=8), 1.0).id

    def send(resize_id: int, phase: str = "accepted") -> int:
        body = to_json(Happening(resize_id, phase, 1, (BASE,), 64, 5.0))
        return world.http.post("/v1/jobs/7/happenings", content=body, headers=headers).status_code

    assert send(own) == 200 and send(0, "finished") == 200
    assert send(others) == 403 and send(404) == 404 and send(own, "exploded") == 400
    assert [call[2].resize for call in world.controller.calls if call[0] == "happened"] == [own, 0]


def test_supervisors_of_older_versions_say_the_same_in_phases(world: World) -> None:
    """What 0.2.0 wrote is taken as what it is now; what a checkpoint costs, which versions 4 and 5 say so, too."""
    headers = with_token(world.token())
    own = world.store.resizes.begin(dataclasses.replace(RESIZE, id=0), 1.0).id
    recorded = json.loads((Path(__file__).parents[2] / "protocol" / "messages_of_version_2.json").read_text())["Phase"]
    checkpoint = {"resize": 0, "phase": "checkpointed", "generation": 1, "pieces": [], "batch": 64, "version": 4}
    checkpoint |= {"pause_s": 0.25, "megabytes": 312.0, "write_s": 4.0, "every_s": 75.0}
    for said in (recorded | {"resize": own}, checkpoint):
        assert world.http.post("/v1/jobs/7/phases", content=json.dumps(said), headers=headers).status_code == 200
    (_, _, happening), (_, _, rate) = world.controller.calls[-2:]
    assert (happening.resize, happening.what, happening.batch, happening.version) == (own, "running", 64, 2)
    assert happening.pieces[0].nodes == ("n1", "n2")
    assert rate == Rate("checkpoints", 75.0, 0.25, 4.0, 312.0, 4)


def test_resize_is_waited_for(world: World) -> None:
    """204 when nothing comes; at once when it comes while one waits; a withdrawn one is told again."""
    headers = with_token(world.token())
    get: Callable[[str], httpx.Response] = lambda query: world.http.get("/v1/jobs/7/resize" + query, headers=headers)  # noqa: E731
    assert get("?after=0&wait=0").status_code == 204

    async def arrives() -> httpx.Response:
        transport, [prove] = httpx.ASGITransport(world.app), world.http.event_hooks["request"]

        async def proven(request: httpx.Request) -> None:
            prove(request)

        hooks = {"request": [proven]}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://x", headers=headers, event_hooks=hooks
        ) as client:
            waiting = asyncio.create_task(client.get("/v1/jobs/7/resize?after=0&wait=30"))
            while not world.controller.waits:
                await asyncio.sleep(0.001)
            assert not waiting.done()
            world.controller.current = RESIZE
            world.controller.changed.set()
            return await asyncio.wait_for(waiting, 10)

    answer = asyncio.run(arrives())
    assert answer.json()["id"] == 3 and answer.json()["keep"][0]["nodes"] == ["n1"]
    assert get("?after=3&wait=0").status_code == 204
    world.controller.current = dataclasses.replace(RESIZE, withdrawn=True)
    assert get("?after=3").json()["withdrawn"] is True
    assert get("?wait=61").status_code == 400


def test_one_job_cannot_take_all_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than ten seconds' worth of requests at once is 429 with a time to come back; other jobs are not touched."""
    monkeypatch.setattr(requests, "TOO_MANY_S", 0.0)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: 100.0))  # all of them at once
    headers = with_token(world.token())
    codes = [world.http.get("/v1/jobs/7/resize", headers=headers).status_code for _ in range(60)]
    assert codes[:50] == [204] * 50 and codes[-1] == 429
    refused = world.http.get("/v1/jobs/7/resize", headers=headers)
    assert refused.headers["retry-after"] == "5"
    other = world.http.post("/v1/jobs/8/register", content=REGISTRATION, headers=as_uid(BOB)).json()["token"]
    assert world.http.get("/v1/jobs/8/resize", headers=with_token(other)).status_code == 204


def test_who_reads_too_much_is_refused_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has used up the time that views of history may take: their jobs report on, and others are answered."""
    token, body = world.token(), to_json(Reports((REPORT,)))
    monkeypatch.setattr(callers, "AT_ONCE_S", 1e-9)
    monkeypatch.setattr(callers, "SHARE", 1e-6)
    monkeypatch.setattr(requests, "TOO_MANY_S", 0.0)
    assert world.http.get("/v1/acct", headers=as_uid(ADA)).status_code == 200
    refused = world.http.get("/v1/acct", headers=as_uid(ADA))
    assert refused.status_code == 429 and "of a core" in refused.json()["error"]
    assert refused.json()["error"].endswith(f"ask again in {refused.headers['Retry-After']} s")
    assert world.http.get("/v1/jobs", headers=as_uid(ADA)).status_code == 429
    assert world.http.get("/v1/acct", headers=as_uid(BOB)).status_code == 200
    reported = world.http.post("/v1/jobs/7/reports", content=body, headers=with_token(token))
    assert reported.status_code == 202


@pytest.mark.parametrize(
    ("error", "status"),
    [(StoreError("the disk is full"), 503), (SlurmUnreachable("no slurmctld"), 503), (MungeError("no munged"), 503)],
)
def test_what_is_down_behind_the_daemon_is_503(world: World, error: Exception, status: int) -> None:
    """A caller learns that it is to come again later, and what is the matter."""
    world.controller.error = error
    answer = world.http.post("/v1/jobs/7/register", content=REGISTRATION, headers=as_uid(ADA))
    assert answer.status_code == status and answer.json()["error"] == str(error)


def test_a_fault_of_ours_tells_nothing(world: World) -> None:
    """An unexpected exception is 500 without its text: that is for the log."""
    world.controller.error = RuntimeError("password=hunter2")
    answer = world.http.post("/v1/jobs/7/register", content=REGISTRATION, headers=as_uid(ADA))
    assert answer.status_code == 500 and "hunter2" not in answer.text


def test_a_shim_of_0_1_0_is_refused(world: World) -> None:
    """Its user is told what to do; the training goes on at the size it has."""
    body = to_json(Registration(1, 1, (BASE,), 64, "train.py"))
    answer = world.http.post("/v1/jobs/7/register", content=body, headers=as_uid(ADA))
    assert (
        answer.status_code == 400
        and "start the job again with the slurm-elastic of the daemon" in answer.json()["error"]
    )


def test_a_newer_supervisor_is_taken(world: World) -> None:
    """What this daemon does not know of its messages is ignored; the grant says which version the daemon has."""
    data = json.loads(REGISTRATION) | {"version": VERSION + 1, "tomorrow": 1}
    grant = world.http.post("/v1/jobs/7/register", content=json.dumps(data), headers=as_uid(ADA))
    assert grant.status_code == 200 and grant.json()["version"] == VERSION
    headers = with_token(grant.json()["token"])
    phase = json.loads(to_json(Happening(0, "finished", 1, (BASE,), 64, 5.0)))
    body = json.dumps(phase | {"tomorrow": 1})
    assert world.http.post("/v1/jobs/7/happenings", content=body, headers=headers).status_code == 200
    assert world.http.get("/v1/jobs/7/resize?tomorrow=1", headers=headers).status_code in (200, 204)


@pytest.mark.parametrize(
    ("what", "body", "words"),
    [
        ("register", b'{"version": 2}', "field generation is missing"),
        ("register", REGISTRATION.replace(b'"version":%d' % VERSION, b'"version":1'), "version 1 of the messages"),
        ("phases", b'{"resize": "x"}', "Phase.resize: 'x' is not accepted"),
        ("happenings", b'{"resize": "x"}', "Happening.resize: 'x' is not accepted"),
        ("rates", to_json(Rate("coffee", 1.0)), "of=coffee is not known; accepted: checkpoints"),
        ("happenings", to_json(Happening(0, "paused", 1, (BASE,), 64)), "what=paused is not known"),
        ("phases", to_json(Phase(0, "paused", 1, (BASE,), 64)), "phase=paused is not known"),
        ("reports", b'{"reports": [{}]}', "field generation is missing"),
    ],
)
def test_a_supervisor_that_is_not_understood_is_kept_with_its_job(
    world: World, what: str, body: bytes, words: str
) -> None:
    """Both sides are told the same sentence; nobody can say so of another's job."""
    headers = as_uid(ADA) if what == "register" else with_token(world.token())
    refused = world.http.post(f"/v1/jobs/7/{what}", content=body, headers=headers)
    assert refused.status_code == 400 and words in refused.json()["error"]
    assert world.controller.calls[-1] == ("not understood", 7, refused.json()["error"])
    before = len(world.controller.calls)
    for path, other in ((f"/v1/jobs/7/{what}", as_uid(BOB)), ("/v1/jobs/7/pin", as_uid(ADA))):
        assert world.http.post(path, content=body, headers=other).status_code in (400, 401, 403)
    assert len(world.controller.calls) == before


def test_views_of_the_past_leave_threads_to_supervisors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask for long histories, two are made at once, and who asks for anything else is answered."""
    going, least, held = threading.Semaphore(0), threading.Event(), []

    def slow(*_: Any, **__: Any) -> list[Any]:
        held.append(1)
        going.release()
        assert least.wait(60)
        return []

    monkeypatch.setattr(reports, "acct", slow)
    with ThreadPoolExecutor(48) as many:
        asked = [many.submit(world.http.get, "/v1/acct", headers=as_uid(uid)) for uid in range(5000, 5045)]
        assert going.acquire(timeout=60) and going.acquire(timeout=60)
        assert world.http.get("/v1/health").status_code == 200
        world.token()
        assert len(held) == 2
        least.set()
        assert {each.result().status_code for each in asked} == {200}


def test_a_user_has_one_view_of_the_past_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second place is another user's, however many views the first one asks for."""
    going, go_on, held = threading.Semaphore(0), threading.Event(), list[int]()

    def slow(_store: Store, viewer: Viewer, *_: Any, **__: Any) -> list[Any]:
        held.append(viewer.uid)
        going.release()
        assert go_on.wait(60)
        return []

    monkeypatch.setattr(reports, "acct", slow)
    with ThreadPoolExecutor(8) as many:
        asked = [many.submit(world.http.get, "/v1/acct", headers=as_uid(ADA)) for _ in range(6)]
        assert going.acquire(timeout=60)
        asked.append(many.submit(world.http.get, "/v1/acct", headers=as_uid(BOB)))
        assert going.acquire(timeout=60)
        assert held == [ADA, BOB]
        go_on.set()
        assert {each.result().status_code for each in asked} == {200}
