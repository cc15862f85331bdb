"""The sizes and the batches that the optimizer may choose from."""

from __future__ import annotations

from dataclasses import replace

from plan_cases import World, row, seen

from slurm_elastic.daemon.planner import JobState


def test_only_a_job_until_quality_gives_up_a_large_batch_for_its_noise() -> None:
    """A noise scale that three reports agree on counts where the request says until=quality, and nowhere else."""
    said = {}
    for until, count in (("epochs", 9), ("quality", 9), ("quality", 2)):
        world = World(1)
        world.job(1, "n1", f"elastic:gpus=4,batch=64-4096,until={until}")
        noisy = [replace(seen(4, step, batch, count), noise_scale=1.0) for step, batch in ((1.0, 256), (1.5, 512))]
        world.states[1] = JobState(observations=tuple(noisy), reference=(4, 256))
        said[until, count] = row(world.plan(), 1).batch_to
    assert said["quality", 9] < 256 < said["epochs", 9] == said["quality", 2]


def test_a_guarded_range_ends_where_samples_lose_their_worth() -> None:
    """guard=80 takes no batch at which a sample keeps less than 80 %, and none above the first while the noise is
    not known; without a guard the range is all there is."""
    said = {}
    for guard, noise in (("", 1000.0), (",guard=80", 1000.0), (",guard=80", 0.0), (",guard=80", 1e9)):
        world = World(1)
        world.job(1, "n1", f"elastic:gpus=4,batch=64-4096{guard}")
        reports = [replace(seen(4, step, batch, 9), noise_scale=noise) for step, batch in ((1.0, 256), (1.5, 512))]
        world.state(1, observations=tuple(reports))
        said[guard, noise] = row(world.plan(), 1).batch_to
    assert said["", 1000.0] == said[",guard=80", 1e9] == 4096
    assert said[",guard=80", 1000.0] == 512
    assert said[",guard=80", 0.0] <= 256


def test_no_size_is_planned_that_gives_a_rank_what_its_script_cant_take() -> None:
    """192 samples on four of 16 GPUs that grow: 12 each, or 16 on twelve where each takes multiples of 16 only."""
    for words, chosen in (("", 16), (",slice=12", 16), (",slice=16", 12), (",slice=24", 8)):
        world = World(4)
        world.job(1, "n1", f"elastic:gpus=4-16,batch=192{words}")
        assert row(world.plan(), 1).gpus_to == chosen
