"""Two hosts between which the network carries nothing, with a real selasticd."""

from __future__ import annotations

import tempfile
import time

import pytest
from live_daemon import live_daemon
from sandbox_of_hosts.links import CUT, Links
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from training_job import Start
from waiting import wait_until

from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Unreached

REQUEST = "elastic:gpus=2-4,batch=16-16"


def test_a_pair_that_has_failed_three_times_is_left_out(
    hosts: HostsSandbox, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A joining host that reaches the supervisor's, but not another one that trains, fails the resize, with a sentence;
    nobody has left the old world for it. After the third time (selasticd has two in its database) the job grows where
    it can, and `explain` names both hosts and the address. `selastic hosts` clears them once the network is mended."""
    if hosts.spec.hosts != "private":
        pytest.skip("once is enough")
    monkeypatch.setattr(tempfile, "tempdir", str(hosts.home))  # a folder that all hosts see
    hosts.links = Links().with_both_ways("n2", "n3", CUT)
    with live_daemon(hosts, monkeypatch, host=address(HEAD)) as selasticd:
        selasticd.kill()
        with Store(f"sqlite:///{selasticd.state}/selastic.db") as store:
            for _ in range(2):
                store.host_pairs.note("root", [Unreached("n2", "n3", address("n3"))], time.time())
        selasticd.start()
        options = f"-N2 -w n1,n2 --gres=gpu:1 --time=30 --comment={REQUEST}"
        job = start(options, alone=True, env=selasticd.found)
        wait_until(lambda: selasticd.trains_on(job.id) == 2, 120, selasticd.log)
        pinned = selasticd.selastic("pin", str(job.id), "4")
        assert pinned.returncode == 0, pinned.stderr
        selasticd.settles_at(job.id, 4, 120)
        assert {name for held in selasticd.jobs().values() for name in held.nodes} == {"n1", "n2"}
        said = selasticd.selastic("explain", str(job.id)).stdout
        where = f"n2 and n3 do not reach each other (n2 at {address('n2')}): not put on both before"
        assert where in " ".join(said.split()), said
        assert job.text().count(f"n3 does not reach n2 at {address('n2')} port ") == 1, job.text()
        assert selasticd.selastic("hosts", "-nP", "-o", "host,other,user,failures").stdout == "n2|n3|root|3\n"
        hosts.links = Links()
        cleared = selasticd.selastic("hosts", "--clear", "n3,n2")
        assert cleared.returncode == 0, cleared.stderr
        assert selasticd.selastic("hosts", "-nP").stdout == ""
        assert "do not reach" not in selasticd.selastic("explain", str(job.id)).stdout
        kinds = selasticd.events(job.id)
        assert (kinds.count("resize_failed"), kinds.count("running")) == (1, 1), "and nobody was restarted"
        job.finish()
