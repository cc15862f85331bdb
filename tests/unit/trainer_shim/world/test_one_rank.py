"""Code that one rank runs for all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from local_jobs import refused

from slurm_elastic.trainer_shim.world.one_rank import COLLECTIVES, BeforePass, collectives_refused


@pytest.fixture
def grouped() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_collectives_are_refused_where_nobody_answers(grouped: None) -> None:
    """Each by its name, in this thread alone; who this rank is may be asked, and afterwards all is as before."""
    before = [getattr(dist, name) for name in COLLECTIVES]
    elsewhere: list[float] = []

    def summed() -> None:
        value = torch.ones(())
        dist.all_reduce(value)
        elsewhere.append(float(value))

    with collectives_refused("job.once(evaluate)"):
        for name in COLLECTIVES:
            with refused(rf"torch.distributed.{name}\(\) was called inside job.once\(evaluate\), which rank 0 runs"):
                getattr(dist, name)(torch.ones(()))
        assert dist.get_rank() == 0 and dist.is_initialized()
        thread = threading.Thread(target=summed)
        thread.start()
        thread.join()
    assert elsewhere == [1.0]
    assert before == [getattr(dist, name) for name in COLLECTIVES]


def test_a_collective_before_the_pass_is_refused_to_who_joins(grouped: None) -> None:
    """To the others it is told, once; behind that nothing is seen any more."""
    told: list[str] = []
    together, joins = BeforePass(False, told.append), "behind the pass"
    dist.barrier()
    dist.barrier()
    together.end()
    [said] = told
    assert "torch.distributed.barrier() is called at test_one_rank.py line" in said and joins in said
    alone = BeforePass(True, told.append)
    with refused(r"torch.distributed.all_reduce\(\) is called at test_one_rank.py line \d+ before the pass"):
        dist.all_reduce(torch.ones(()))
    alone.end()
    alone.end()
    dist.barrier()
    assert len(told) == 1
