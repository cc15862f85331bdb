"""A world of workers spans hosts, whatever they call themselves and each other."""

from __future__ import annotations

import re

import pytest
from sandbox_of_hosts.links import CUT, Links
from sandbox_of_hosts.names import FIRST, SECOND
from sandbox_of_hosts.sandbox import HostsSandbox
from training import on
from training_job import Start

from slurm_elastic.daemon.slurm import CommandClient, Size
from slurm_elastic.protocol.messages import Piece


def test_a_job_grows_onto_another_host_and_gives_it_back(hosts: HostsSandbox, start: Start) -> None:
    """Training on two hosts grows by a companion on a third and shrinks again: every sample once, no step twice.

    Where names do their work anyway, on a second network of IPv6 addresses alone, which the user has chosen: the first
    one does not lead from one worker to the other.
    """
    chosen = {}
    if hosts.spec.hosts == "full":
        chosen = {"SELASTIC_INTERFACE": SECOND}
        hosts.links = Links().with_both_ways("n2", "n3", CUT, FIRST)
    job = start("-N2 --gres=gpu:1", env=chosen)
    base = job.base()
    job.trains_past(3)
    grown = job.resize(base, on("n3"))
    assert sorted(node for piece in grown.pieces for node in piece.nodes) == ["n1", "n2", "n3"], job.story()
    job.resize(base)
    job.finish()


def test_a_component_is_dropped_and_a_base_is_shrunk_in_place_and_requeued(hosts: HostsSandbox, start: Start) -> None:
    """The mechanisms besides companions, each once: of a heterogeneous job on three hosts one component goes; of a job
    on three a node is given back to Slurm; it is put back into the queue, and goes on at another size."""
    parts = start("-N2 --gres=gpu:1 : -N1 --gres=gpu:1")
    base, component = parts.base()
    assert component.kind == "component"
    parts.trains_past(3)
    assert parts.resize((base,)).pieces == (base,), parts.story()
    parts.slurm("scancel", str(component.slurm_job_id))
    parts.trains_on()
    parts.finish()

    job = start("-N3 --gres=gpu:1")
    [base] = job.base()
    job.trains_past(3)
    job.resize((Piece(job.id, "base", base.nodes[:2], 1),))
    job.slurm("scontrol", "update", f"JobId={job.id}", f"NodeList={','.join(base.nodes[:2])}")
    job.trains_on()
    CommandClient(hosts.env["SLURM_CONF"]).requeue(job.id)
    job.comes_back(Size(1, 1))
    job.says("1 workers (1 x 1 of base), from checkpoint", 120)
    job.finish()


def test_a_network_that_does_not_lead_to_the_supervisor_is_named(hosts: HostsSandbox, start: Start) -> None:
    """A companion's agent that does not get through fails the resize with one sentence: node, address and port.
    Training goes on meanwhile."""
    if hosts.spec.hosts != "loopback":
        pytest.skip("once is enough: the agent waits for half a minute")
    job = start("-N1 --gres=gpu:1", env={"SELASTIC_INTERFACE": "lo"})
    base = job.base()
    job.trains_past(3)
    failed = job.daemon.wait_phase(job.order(base, on("n3")), "failed", 150)
    expected = (
        r"agents did not start: node n3 does not reach the supervisor at 127.0.0.1 port \d+ \(Connection refused\)"
    )
    assert re.search(expected, failed.detail), failed.detail
    job.trains_on()
    job.finish()


def test_a_job_directory_that_each_host_has_for_itself_is_noticed(hosts: HostsSandbox, start: Start) -> None:
    """One sentence says on which host it is another one; the training goes on."""
    if hosts.spec.hosts != "full":
        pytest.skip("once is enough")
    job = start("-N2 --gres=gpu:1", words="--job-dir /tmp/its-own")
    sentence = "selastic: the job directory /tmp/its-own on n2 is not the one on n1: "
    job.says(sentence)
    job.trains_past(3)
    job.finish()
    assert job.text().count("is not the one") == 1
