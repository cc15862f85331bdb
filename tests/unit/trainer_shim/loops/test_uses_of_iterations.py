"""A loop that stays the script's, in one process: what it may do between two boundaries, and one clear sentence for
each wrong use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, refused

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
X, Y = DATA.tensors


def own(made: list[elastic.Job], keep: bool = True, **options: Any) -> tuple[elastic.Job, Any, torch.optim.SGD]:
    job = elastic.join(**{"batch": 8, **options})
    made.append(job)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    net = job.replicate(model)
    if keep:
        job.keep(optimizer=optimizer)
    return job, net, optimizer


def test_iterations_are_counted_and_end(made: list[elastic.Job]) -> None:
    """next(steps) begins so many; rank, steps and samples are there from the first on."""
    job, net, optimizer = own(made)
    numbers = []
    while job.next(3):
        numbers.append(job.global_step)
        mine = job.share(8).positions
        assert (job.rank, mine) == (0, range(8))
        optimizer.zero_grad()
        loss_of(net, (X[mine.start : mine.stop], Y[mine.start : mine.stop])).backward()
        optimizer.step()
    assert numbers == [0, 1, 2]
    assert (job.global_step, job.samples) == (3, 24)


@cuts
def test_replicas_and_shards_are_not_mixed(made: list[elastic.Job]) -> None:
    """A rank with fewer micro batches computes one more of a sharded model, which a replica would count."""
    job, _, _ = own(made)
    with refused(r"job.shard\(\) was called beside a model of the other kind"):
        job.shard(torch.nn.Linear(3, 1))
    with refused("shard=4 is not accepted; accepted: function"):
        job.shard(torch.nn.Linear(3, 1), 4)  # type: ignore[arg-type]


@cuts
def test_a_sharded_model_alone_is_whole(made: list[elastic.Job]) -> None:
    """One process needs no parts: the loop is as it is with replicas; under torch.no_grad() anybody may call it."""
    job = elastic.join(batch=8)
    made.append(job)
    with torch.device("meta"):
        model = torch.nn.Linear(3, 1)
    net, optimizer = job.shard(model), torch.optim.SGD(model.parameters(), lr=0.1)
    job.keep(optimizer=optimizer)
    while job.next(2):
        with torch.no_grad():
            before = loss_of(net, (X, Y))
        with refused("before job.share"):
            net(X)
        for _ in job.share(1):
            loss_of(net, (X, Y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss_of(model, (X, Y)) < before


def test_a_stop_ends_the_loop_at_the_next_boundary(made: list[elastic.Job]) -> None:
    job, net, optimizer = own(made)
    while job.next():
        for _ in job.share(1):
            loss_of(net, (X, Y)).backward()
        optimizer.step()
        job.stop()
    assert job.global_step == 1


def test_what_is_drawn_belongs_to_the_iteration_and_the_micro_batch(made: list[elastic.Job]) -> None:
    """The numbers drawn in an iteration are others in the next one, and in each micro batch, and do not depend on how
    many were drawn before."""
    job, _, _ = own(made)
    drawn = []
    while job.next(2):
        torch.rand(3 + job.global_step)
        drawn += [float(torch.rand(())) for _ in job.share(2)]
    assert len(set(drawn)) == 4
    made.clear()
    job.close()
    again, _, _ = own(made)
    repeated = []
    while again.next(2):
        repeated += [float(torch.rand(())) for _ in again.share(2)]
    assert repeated == drawn


def test_several_optimizers_shares_and_backward_passes(made: list[elastic.Job]) -> None:
    """Two models trained against each other, one of them with two steps in an iteration: each step has its share."""
    job = elastic.join(batch=8)
    made.append(job)
    models = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]
    nets = [job.replicate(model) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    job.keep(one=optimizers[0], other=optimizers[1])
    before = [model.weight.clone() for model in models]
    while job.next(2):
        for _ in range(2):
            job.share(8)
            optimizers[1].zero_grad()
            nets[1](X).mean().backward()
            nets[1](nets[0](X).detach()).mean().backward()
            optimizers[1].step()
        optimizers[0].zero_grad()
        nets[1](nets[0](X)).mean().backward()
        optimizers[0].step()
    assert all(not torch.equal(model.weight, old) for model, old in zip(models, before, strict=True))
    assert sorted(job._session.state.parts["Model"].state_dict()) == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_variables_are_kept_by_name(made: list[elastic.Job]) -> None:
    """What a checkpoint of an iteration holds is what they were at its end, whatever the script assigns meanwhile."""
    job, net, optimizer = own(made)
    variables = {"best": 1e9, "seen": 0}
    job.keep(variables, "best", "seen")
    part = job._session.state.parts["Variables1"]
    held = []
    while job.next(2):
        variables["best"] = torch.tensor(0.5)
        for _ in job.share(1):
            loss_of(net, (X, Y)).backward()
        held.append(part.state_dict())
        optimizer.step()
        optimizer.zero_grad()
        variables["seen"] += 1
    assert held == [{"best": 1e9, "seen": 0}, {"best": torch.tensor(0.5), "seen": 1}]
    part.load_state_dict({"best": 3.0, "seen": 7})
    assert variables == {"best": 3.0, "seen": 7}


def test_wrong_uses_before_the_loop(made: list[elastic.Job]) -> None:
    """One of the two ways, a model, an optimizer that is kept, and the batch that join() was given."""
    job, _, _ = own(made, keep=False)
    with refused("before job.keep\\(optimizer=optimizer\\)"):
        job.next()
    job.close()
    made.clear()
    job = elastic.join(batch=8)
    made.append(job)
    with refused("before job.replicate"):
        job.next()
    job.close()
    made.clear()
    job, _, _ = own(made)
    with refused("no variable of that name"):
        job.keep({}, "iter_num")
    with refused("given a list"):
        job.keep([], "iter_num")  # type: ignore[arg-type]
    with refused("job.replicate\\(batch=...\\) is not known"):
        job.replicate(torch.nn.Linear(3, 1), batch=8)
    with refused("was given what an earlier job.replicate"):
        job.replicate(job.replicate(torch.nn.Linear(3, 1)))
    with refused("job.wrap\\(\\) was called after job.replicate"):
        job.wrap(torch.nn.Linear(3, 1), torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1))
    with refused("job.share\\(\\) was called before job.next"):
        job.share(8)
    job.keep(stray=torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=0.1))
    with refused("holds no parameter of what job.replicate"):
        job.next()
    job.close()
    made.clear()
    with refused("max_batch=16"):
        own(made, max_batch=16)


@pytest.mark.parametrize("option", [{"unit": {"tp": 1}}, {"deterministic": True}])
def test_ways_that_do_not_go_together(made: list[elastic.Job], option: dict[str, Any]) -> None:
    with refused(f"join\\({next(iter(option))}="):
        own(made, **option)


def test_an_optimizer_is_not_stepped_outside_of_the_loop(made: list[elastic.Job]) -> None:
    """A loop that never comes to job.next() would train each rank for itself."""
    _, net, optimizer = own(made)
    with refused("outside of the loop, `while"):
        optimizer.step()
    with refused("before job.share"):
        net(X)
    with torch.no_grad():
        net(X)


def test_wrong_uses_in_the_loop(made: list[elastic.Job]) -> None:
    """A step without a share, twice, of an optimizer that does not survive, of a bare model; job.step(loss)."""
    job, net, optimizer = own(made)
    other = torch.optim.SGD(net.parameters(), lr=0.1)
    assert job.next()
    with refused("before job.share"):
        net(X)
    with refused("again without a job.share"):
        optimizer.step()
    with refused("job.share\\(0\\)"):
        job.share(0)
    job.share(8)
    loss_of(net.module, (X, Y)).backward()
    with refused("no other rank has seen"):
        optimizer.step()
    loss_of(net, (X, Y)).backward()
    with refused("job.keep\\(\\) was not given"):
        other.step()
    optimizer.step()
    with refused("again without a job.share"):
        optimizer.step()
    with refused("job.step\\(\\) was called without a batch"):
        job.step(loss_of(net, (X, Y)))
    with refused("called after the loop had begun"):
        job.replicate(torch.nn.Linear(3, 1))
    bystander = torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=0.1)
    bystander.step()


def test_batches_of_a_loader_take_a_step_each(made: list[elastic.Job]) -> None:
    """In a loop over job.loader() each batch has its step; gradients kept for a later one would be lost at a resize."""
    job, net, optimizer = own(made)
    for _ in job.epochs(1):
        for batch in job.loader(DATA):
            with refused("job.next\\(\\) was called inside job.epochs"):
                job.next()
            with refused("job.share\\(\\) was called before job.next"):
                job.share(2)
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
            with refused("again without a job.share"):
                optimizer.step()
        with refused("again without a job.share"):
            optimizer.step()
        with refused("before job.share"):
            net(X)
    assert (job.global_step, job.samples, job.epoch) == (3, 20, 1)


def test_a_batch_of_a_loader_may_step_several_optimizers(made: list[elastic.Job]) -> None:
    """As a GAN over a dataset does: two backward passes into one step, and one into the other's."""
    job, net_d, opt_d = own(made)
    generator = torch.nn.Linear(2, 3)
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.1)
    net_g = job.replicate(generator)
    job.keep(other=opt_g)
    before = generator.weight.clone()
    for _ in job.epochs(1):
        for x, _ in job.loader(DATA):
            net_d.module.zero_grad()
            net_d(x).mean().backward()
            fake = net_g(torch.randn(len(x), 2))
            (-net_d(fake.detach()).mean()).backward()
            opt_d.step()
            net_g.module.zero_grad()
            net_d(fake).mean().backward()
            opt_g.step()
    assert job.global_step == 3 and not torch.equal(before, generator.weight)


def test_gradients_are_not_kept_over_a_boundary(made: list[elastic.Job]) -> None:
    job, net, _ = own(made)
    assert job.next()
    job.share(8)
    loss_of(net, (X, Y)).backward()
    with refused("no optimizer was stepped since job.next"):
        job.next()


@pytest.mark.parametrize("scaler", [None, False, True])
def test_a_window_over_batches_is_refused_in_its_first_batch(made: list[elastic.Job], scaler: bool | None) -> None:
    """Whether or not a gradient scaler is kept, enabled or not: a worker that joins would lack what is gathered."""
    job, net, optimizer = own(made)
    scales = torch.amp.GradScaler("cpu", enabled=bool(scaler))
    job.keep(scaler=None if scaler is None else scales)
    batches = 0
    with refused("no optimizer was stepped since job.next"):
        for _ in job.epochs(1):
            for batch in job.loader(DATA):
                batches += 1
                scales.scale(loss_of(net, batch) / 3).backward()
                if batches % 3 == 0:
                    scales.step(optimizer)
                    scales.update()
                    optimizer.zero_grad()
    assert batches == 1


@pytest.mark.parametrize("way", ["two optimizers", "a step in the middle", "never cleared", "clipped"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_with_gradients_of_an_earlier_iteration_is_refused(
    made: list[elastic.Job], way: str, scaled: bool
) -> None:
    """Beside another optimizer's steps, where some step was taken in each iteration: in the first window, too."""
    job, net, optimizer = own(made)
    model = torch.nn.Linear(3, 1)
    other, net2 = torch.optim.Adam(model.parameters()), job.replicate(model)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    job.keep(other=other, scaler=scaler)
    with refused("with gradients of an iteration, or a batch"):
        while job.next(4):
            job.share(8)
            scaler.scale(loss_of(net, (X, Y))).backward()
            scaler.step(optimizer)
            if way != "never cleared":
                optimizer.zero_grad()
            if way == "a step in the middle":
                job.share(8)
                scaler.scale(loss_of(net, (X, Y))).backward()
            scaler.scale(loss_of(net2, (X, Y))).backward()
            if job.global_step % 2 or way not in ("two optimizers", "clipped"):
                if way == "clipped":
                    scaler.unscale_(other)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                scaler.step(other)
                other.zero_grad()
            scaler.update()
    assert job.global_step == 1


def test_a_group_that_is_added_in_the_loop_is_refused_at_its_step(made: list[elastic.Job]) -> None:
    job, net, optimizer = own(made)
    with refused(r"a SGD has 2 parameter groups and had 1 when job.keep\(\) got it"):
        while job.next(3):
            job.share(8)
            if job.global_step == 1:
                optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
            loss_of(net, (X, Y)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert job.global_step == 1


@pytest.mark.parametrize(("to_none", "behind"), [(False, False), (True, False), (False, True)])
def test_gradients_that_are_cleared_before_a_step_may_be_left(
    made: list[elastic.Job], to_none: bool, behind: bool
) -> None:
    """The first network's loss adds to what the second one has left, which is cleared before it counts. Zeros, in an
    iteration's end, are nothing that is left."""
    job = elastic.join(batch=8)
    made.append(job)
    models = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]
    nets = [job.replicate(model) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    job.keep(one=optimizers[0], other=optimizers[1])
    while job.next(4):
        for number, optimizer in enumerate(optimizers):
            if number and job.global_step == 2:
                continue
            job.share(8)
            if not behind:
                optimizer.zero_grad(set_to_none=to_none)
            nets[1](nets[0](X) if number == 0 else X).mean().backward()
            optimizer.step()
        for optimizer in optimizers if behind else []:
            optimizer.zero_grad(set_to_none=False)
    assert job.global_step == 4


def test_a_scaler_may_leave_out_a_step(made: list[elastic.Job]) -> None:
    job, net, optimizer = own(made)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    job.keep(scaler=scaler)
    while job.next(2):
        job.share(8)
        optimizer.zero_grad()
        loss = loss_of(net, (X, Y)) * (float("inf") if job.global_step == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (job.global_step, scaler.get_scale()) == (2, 2.0)


def test_micro_batches_are_the_scripts_own(made: list[elastic.Job]) -> None:
    job, _, _ = own(made, micro_batch=3)
    for _ in job.epochs(1):
        with refused("join\\(micro_batch=...\\) does not go with job.loader"):
            next(iter(job.loader(DATA)))


@pytest.mark.parametrize("failed", [False, True])
def test_leaving_the_loop_ends_the_training_but_not_by_an_error(
    made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """After a `break` the last iteration counts and the training is finished, where the process ends; after an error
    it is not, and a supervisor starts it again."""
    job, net, optimizer = own(made)
    while job.next():
        for _ in job.share(1):
            loss_of(net, (X, Y)).backward()
        optimizer.step()
        break
    progress = job._session.state.progress
    assert (progress.step, progress.finished) == (0, False)
    monkeypatch.setattr("sys.last_type", ValueError if failed else None, raising=False)
    job.close()
    assert (progress.step, progress.finished) == ((0, False) if failed else (1, True))
