"""A round that knows what has not changed decides what a round from scratch does, and says the same of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from daemon_harness import World

REQUEST = "elastic:gpus=4-24,step=4,batch=240-3840,until=quality"


@pytest.mark.parametrize("seed", range(4))
def test_rounds_of_jobs_that_mostly_report_the_same(tmp_path: Path, seed: int) -> None:
    """Jobs report in every round, now and then another noise scale; time limits come nearer; owners pin; others wait.
    The jobs that have only reported are the objects that they were."""
    chance = random.Random(seed)
    world = World(tmp_path, nodes=8, cooldown_grow_s=0.0, cooldown_shrink_s=0.0)
    jobs = [world.elastic(1, 4, REQUEST, ends_at=world.slurm.now + chance.uniform(300, 1500)) for _ in range(3)]
    jobs.append(world.elastic(1, 4, comment=REQUEST.replace("quality", "epochs")))
    world.settle()
    same, rigid = 0, list[int]()
    for _ in range(60):
        before = {job.job_id: world.rounds.running_job(job.job_id) for job in jobs}
        for job in jobs:
            if chance.random() < 0.1:
                job.noise_scale = chance.choice((0.0, 500.0, 8000.0))
        if chance.random() < 0.1:
            world.store.jobs.pin(chance.choice(jobs).job_id, chance.choice((None, None, 4, 8)))
        if chance.random() < 0.1:
            rigid.append(world.rigid(chance.choice((1, 2))))
        if chance.random() < 0.1 and rigid:
            world.slurm.finish(rigid.pop())
        if chance.random() < 0.05:
            world.slurm.set_node_state(f"n{chance.randint(1, 8)}", *chance.choice(((), ("IDLE", "DRAIN"))))
        world.round(chance.choice((5.0, 20.0)))
        assert world.rounds.dry_run() == world.rounds_from_scratch().dry_run()
        now = {job.job_id: world.rounds.running_job(job.job_id) for job in jobs}
        same += sum(one is not None and one is now[job_id] for job_id, one in before.items())
    assert same > 60
