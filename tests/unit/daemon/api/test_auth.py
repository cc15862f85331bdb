"""Who is an admin, and a user's own daemon that knows its caller without MUNGE."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.daemon.api.auth import Authenticator, Unauthenticated, spoken
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import MAX_AGE_S, Verifier, prove_secret
from slurm_elastic.protocol.errors import NotAllowed


def test_admins_are_root_slurms_user_and_those_named(tmp_path: Path) -> None:
    """SlurmUser of slurm.conf and the users of the settings, by name or uid; a name that nobody has is nobody."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("SlurmUser=games(5)\n")
    found = Authenticator(Settings(slurm_conf=str(conf), admins=("nobody", "4242", "no-such-user")))
    assert {uid for uid in (0, 5, 4242, 65534, 4243, 1) if found.viewer(uid).admin} >= {0, 5, 4242, 65534}
    assert not found.viewer(4243).admin


def test_a_users_daemon_takes_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """In user mode who knows the secret of client.json is its user; another secret, or none, is nobody, and the secret
    itself, which never travels, opens nothing."""
    found = Authenticator(Settings(user_mode=True))
    values = found.client_values("http://127.0.0.1:1")
    assert values["url"] == "http://127.0.0.1:1" and values["uid"] == os.geteuid()
    bound = munge.bind("GET", "/", b"")
    assert found.who(f"Secret {prove_secret(values['secret'], bound)}", "GET", "/", b"").uid == os.geteuid()
    other = prove_secret("x", bound)
    for wrong in (f"Secret {values['secret']}", f"Secret {other}", "Secret ", "Secret \u00e9", "Bearer x", "", None):
        with pytest.raises(Unauthenticated):
            found.who(wrong, "GET", "/", b"")


def test_a_proof_is_good_for_one_request_once() -> None:
    """Heard on the network it opens nothing: not again, not another request, not an hour later; and those that are too
    old to be taken are not kept in mind."""
    now = [1e9]
    verifier = Verifier("s", clock=lambda: now[0])
    made = [prove_secret("s", b"GET /", clock=lambda: now[0]) for _ in range(3)]
    verifier.check(made[0], b"GET /")
    for proof, message, sentence in (
        (made[0], b"GET /", "has been used before"),
        (made[1], b"GET /x", "does not fit"),
        (made[1][:-1] + ("0" if made[1][-1] != "0" else "1"), b"GET /", "does not fit"),
        (f"{now[0] + 9:.3f}{made[1][made[1].rindex('.', 0, 40) :]}", b"GET /", "does not fit"),
    ):
        with pytest.raises(NotAllowed, match=sentence):
            verifier.check(proof, message)
    verifier.check(made[1], b"GET /")
    for away in (MAX_AGE_S + 1, -MAX_AGE_S - 1):
        now[0] = 1e9 + away
        with pytest.raises(NotAllowed, match="set the hosts' clocks"):
            verifier.check(made[2], b"GET /")
    now[0] = 1e9 + MAX_AGE_S + 1
    verifier.check(prove_secret("s", b"", clock=lambda: now[0]), b"")
    assert len(verifier._seen) == 1


def test_a_sites_daemon_has_no_secret() -> None:
    """client.json of a site is for everyone to read, so it holds nothing to hide, and no secret opens anything."""
    found = Authenticator(Settings())
    assert set(found.client_values("http://x:1")) == {"url", "uid"}
    for wrong in ("Secret ", "Secret None", "Secret x"):
        with pytest.raises(Unauthenticated):
            found.who(wrong, "GET", "/", b"")


def test_a_users_daemon_serves_its_user_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another uid, however well proven, has no business with a user's own daemon."""
    payload = munge.bind("GET", "/", b"")
    callers = {"MUNGE:mine:": os.geteuid(), "MUNGE:other:": os.geteuid() + 1}
    monkeypatch.setattr(
        munge, "decode", lambda credential, socket=None: munge.Credential(callers[credential], 0, payload)
    )
    found = Authenticator(Settings(user_mode=True))
    assert found.who("MUNGE MUNGE:mine:", "GET", "/", b"").uid == os.geteuid()
    with pytest.raises(NotAllowed, match="serves uid"):
        found.who("MUNGE MUNGE:other:", "GET", "/", b"")
    assert isinstance(Authenticator(Settings()).who("MUNGE MUNGE:other:", "GET", "/", b""), Viewer)


def test_who_is_a_jobs_supervisor_says_so() -> None:
    """A proof, or a token of 0.2, is asked for by name."""
    assert spoken("Proof abc") == ("Proof", "abc") and spoken("Bearer abc") == ("Bearer", "abc")
    for wrong in (None, "", "Proof", "Bearer ", "MUNGE x"):
        with pytest.raises(Unauthenticated, match="register the job first"):
            spoken(wrong)
