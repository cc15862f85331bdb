"""slurmctld limits how often a user may ask (`rl_enable`, from Slurm 23.02 on), selasticd's and job owners' too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest
from own_sandbox import OwnSandbox
from second_user import GAMES
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.sandbox.host import slurm_release
from slurm_elastic.daemon.slurm import CommandClient

ROUNDS = 12
LIMITS = "SlurmctldParameters=rl_enable,rl_bucket_size=10,rl_refill_rate=4"


@pytest.fixture(scope="module")
def limited(can_run_slurm: None) -> Iterator[Sandbox]:
    spec = SandboxSpec(nodes=2, with_accounting=False, extra_slurm_conf=(LIMITS,))
    if slurm_release(spec) < (23, 2):
        pytest.skip("this Slurm has no rl_enable")
    with OwnSandbox.up(spec) as sandbox:
        yield sandbox


def test_a_user_who_asks_too_often_is_answered_later(limited: Sandbox) -> None:
    """Slurm's own commands wait and ask again: rounds of listings, changes of jobs and their ends take longer, and none
    is taken for a refusal or for a slurmctld that does not answer."""
    ours, theirs = get_context("fork").Pipe()
    process = get_context("fork").Process(target=ask_often, args=(limited.env["SLURM_CONF"], theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(300)
    assert ours.recv() == ROUNDS
    process.join(30)
    log = (limited.dir / "log" / "slurmctld.log").read_text()
    assert re.search(r"RPC rate limit exceeded by uid \S*5\b", log), log[-4000:]


def ask_often(slurm_conf: str, pipe: Connection) -> None:
    """As games: a job a round, listed, changed and cancelled; how many rounds went well, or what went wrong."""
    os.setgroups([])
    os.setgid(GAMES.pw_gid)
    os.setuid(GAMES.pw_uid)
    slurm = CommandClient(slurm_conf, timeout_s=60)
    done = 0
    try:
        for _ in range(ROUNDS):
            submitted = slurm._printed("sbatch", "--parsable", "--chdir=/", "--output=/dev/null", "--wrap=sleep 600")
            job = int(submitted)
            wait_until(lambda job=job: slurm.snapshot().jobs[job].running, 60)  # type: ignore[misc]
            slurm._printed("scontrol", "update", f"JobId={job}", "Comment=asked often")
            slurm.cancel(job)
            done += 1
        pipe.send(done)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
