"""The real daemon, a real Slurm and two users: what one says can neither touch nor reveal what is the other's.

Root's job is managed and has grown by a companion. The user games, a process without privilege, has a job of its own
and speaks for it as a supervisor would, with credentials that MUNGE made for games.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from live_daemon import Selasticd, live_daemon
from second_user import SecondUser, second_user
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.codec import VERSION, to_json
from slurm_elastic.protocol.errors import NotAllowed
from slurm_elastic.protocol.messages import Happening, Piece, Registration

SECRET = "secret-name"
"""Name of root's job: games must not find it anywhere."""


@pytest.fixture
def games() -> Iterator[SecondUser]:
    """Before the daemon's fixture, so that the process is forked first."""
    with second_user() as user:
        yield user


@pytest.fixture
def selasticd(games: SecondUser, empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    """A running daemon on an empty cluster, which games can reach."""
    with live_daemon(empty_sandbox, monkeypatch) as daemon:
        games.url = daemon.client().url
        games.munge_socket = str(munge.default_socket(empty_sandbox.env["SLURM_CONF"]))
        yield daemon


def roots_job(selasticd: Selasticd) -> int:
    """Managed, on 12 GPUs: its own node and a companion's."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", f"--job-name={SECRET}", user=None)
    selasticd.settles_at(job, 12)
    return job


def games_job(selasticd: Selasticd, *options: str) -> tuple[int, Piece]:
    """A running job of games, and its own piece; nothing runs in it, so that the test can speak for it."""
    command = ["sbatch", "--parsable", "--output=/dev/null", "-N1", "--gres=gpu:a100:4", "--time=30", *options]
    answer = selasticd.sandbox.run([*command, "--wrap", "sleep 600"], user="games")
    assert answer.returncode == 0, answer.stderr
    job = int(answer.stdout)
    wait_until(lambda: selasticd.jobs()[job].running, 30, selasticd.log)
    return job, Piece(job, "base", selasticd.jobs()[job].nodes, 4, "a100")


ELASTIC = "--comment=elastic:gpus=4,batch=240-3840"


def register(games: SecondUser, job: int, *pieces: Piece) -> str:
    """Register as the job's supervisor; the token."""
    registration = Registration(VERSION, 1, pieces, 240, "train.py")
    return str(games.post(f"/v1/jobs/{job}/register", to_json(registration))["token"])


def queue(selasticd: Selasticd) -> list[str]:
    """All of squeue that does not change by itself."""
    return sorted(selasticd.sandbox.run(["squeue", "-h", "-o", "%i|%u|%T|%N|%b|%j|%k"]).stdout.splitlines())


@contextmanager
def nothing_moves(selasticd: Selasticd, root: int) -> Iterator[None]:
    """After what is tried inside, and two rounds more, Slurm's queue and root's job are as they were."""
    before = queue(selasticd)
    yield
    for _ in range(2):
        since = time.time()
        wait_until(lambda since=since: since < last_round(selasticd), 60, selasticd.log)
    assert queue(selasticd) == before
    assert selasticd.trains_on(root) == 12


def last_round(selasticd: Selasticd) -> float:
    """When the last round ended, at the earliest: its age is told in tenths of a second."""
    health = selasticd.client().get("/v1/health") or {}
    return time.time() - float(health["last_round_age_s"]) - 0.1


def test_pieces_of_another_user_cannot_be_claimed(selasticd: Selasticd, games: SecondUser) -> None:
    """Neither at registration nor later: root's base and companion do not become what games' job trains on."""
    root = roots_job(selasticd)
    job, own = games_job(selasticd, ELASTIC)
    [companion] = selasticd.companions()
    stolen = Piece(companion.job_id, "companion", companion.nodes, 4, "a100")
    base = Piece(root, "component", selasticd.jobs()[root].nodes, 4, "a100")
    with nothing_moves(selasticd, root):
        for piece in (stolen, base):
            with pytest.raises(NotAllowed, match=f"piece {piece.slurm_job_id} is another user's job"):
                register(games, job, own, piece)
        since = time.time()
        wait_until(lambda: since < last_round(selasticd), 60, selasticd.log)  # in which its job becomes known
        row = selasticd.client().get(f"/v1/jobs/{job}") or {}
        assert row["generation"] is None, "a supervisor that was refused speaks for the job"
        token = register(games, job, own)
        claim = Happening(0, "running", 2, (own, stolen), 240, time.time())
        with pytest.raises(NotAllowed, match=f"piece {companion.job_id} is another user's job"):
            games.post(f"/v1/jobs/{job}/happenings", to_json(claim), token=token)
        with pytest.raises(NotAllowed, match=f"job {root} belongs to another user"):
            register(games, root, own)
    assert selasticd.trains_on(job) == 4


def test_a_forged_companion_tag_is_no_companion(selasticd: Selasticd, games: SecondUser) -> None:
    """A job of games that calls itself root's companion is an ordinary one: not counted, not given up for others."""
    root = roots_job(selasticd)
    tag = f"--comment=selastic:companion-of={root};resize=1"
    forged, _ = games_job(selasticd, tag, f"--job-name=selastic-{root}")
    with nothing_moves(selasticd, root):
        selasticd.client().get("/v1/plan?dry_run=1")
    rigid = selasticd.rigid(6)
    wait_until(lambda: selasticd.jobs()[rigid].running, 30, selasticd.log)
    assert selasticd.jobs()[forged].running and selasticd.trains_on(root) == 4


def test_a_phase_of_anothers_resize_is_refused(selasticd: Selasticd, games: SecondUser) -> None:
    """With a good token of its own job games cannot end root's resize that is under way, and root's goes on."""
    # First, or it would take one of the nodes that root's job is about to ask for.
    job, own = games_job(selasticd, ELASTIC)
    token = register(games, job, own)
    root = selasticd.submit("-N1", "--gres=gpu:a100:4", hold="accepted", user=None)
    log = selasticd.stubs / f"{root}.log"
    wait_until(lambda: log.exists() and "holds at accepted" in log.read_text(), 30, selasticd.log)
    told = selasticd.client().get(f"/v1/jobs/{root}/events") or {}
    [order] = [event["detail"]["resize"] for event in told["events"] if event["kind"] == "resize_issued"]
    before = queue(selasticd)
    for phase in ("running", "failed", "withdrawn", "finished"):
        forged = Happening(order, phase, 2, (own,), 240, time.time())
        with pytest.raises(NotAllowed, match=f"resize {order} is another job's"):
            games.post(f"/v1/jobs/{job}/happenings", to_json(forged), token=token)
        with pytest.raises(NotAllowed, match="the token is not known"):
            games.post(f"/v1/jobs/{root}/happenings", to_json(forged), token=token)
    with pytest.raises(NotAllowed, match="the token is not known"):
        games.get(f"/v1/jobs/{root}/resize", token=token)
    assert queue(selasticd) == before
    (selasticd.stubs / f"{root}.go").touch()
    selasticd.settles_at(root, 12)


def test_plans_and_stories_of_another_user_are_not_told(selasticd: Selasticd, games: SecondUser) -> None:
    """Of root's job games sees the id and the GPUs, in plans stored and dry; its story not at all."""
    root = roots_job(selasticd)
    job, own = games_job(selasticd, ELASTIC)
    register(games, job, own)

    def planned() -> bool:
        return {root, job} <= {row["job_id"] for row in games.get("/v1/plan")["jobs"]}

    wait_until(planned, 30, selasticd.log)
    with nothing_moves(selasticd, root):
        for path in ("/v1/plan", "/v1/plan?dry_run=1"):
            answer = games.get(path)
            rows = {row["job_id"]: row for row in answer["jobs"]}
            told = {key for key, value in rows[root].items() if value is not None}
            assert told == {"job_id", "task_name", "gpus_from", "gpus_to", "own"} and rows[root]["own"] is False
            assert rows[job]["own"] is True and rows[job]["reason"]
            assert SECRET not in json.dumps(answer)
            assert SECRET in json.dumps(selasticd.client().get(path))
        for what in ("explain", "events"):
            with pytest.raises(NotAllowed, match="belongs to another user"):
                games.get(f"/v1/jobs/{root}/{what}")
            assert games.get(f"/v1/jobs/{job}/{what}")
        assert SECRET not in json.dumps([games.get("/v1/jobs"), games.get("/v1/acct")])
