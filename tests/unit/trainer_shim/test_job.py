"""The API in one process: the loop of the documentation, and one clear sentence for each wrong use."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, refused, wrapped
from torch.utils.data import TensorDataset
from worker_harness import NAMESPACE

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.data.sampling import order
from slurm_elastic.trainer_shim.loops import epochs
from slurm_elastic.trainer_shim.parallel.fsdp import check_shard
from slurm_elastic.trainer_shim.state.progress import TrainingProgress
from slurm_elastic.trainer_shim.training.checks import check_wrap
from slurm_elastic.trainer_shim.world import mesh


def test_the_documented_loop(made: list[elastic.Job]) -> None:
    """Six lines around a plain loop: all epochs, all samples, the schedule at its end, one evaluation each."""
    job, net, optimizer = wrapped(made, scheduler=True)
    assert (job.rank, job.world_size, job.generation, job.batch) == (0, 1, 0, 8)
    evaluated = []
    for epoch in job.epochs(2):
        seen = 0
        for batch in job.loader(DATA):
            seen += len(batch[0])
            assert job.step(loss_of(net, batch))
        assert seen == 20
        evaluated.append(job.once(lambda epoch=epoch: epoch * 10))
    assert evaluated == [0, 10]
    assert (job.global_step, job.samples, job.epoch) == (6, 40, 2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_the_wrapped_model_is_the_users_model(made: list[elastic.Job]) -> None:
    """No prefix in its state, its attributes and modes reach the model itself; libraries that ask take it for what the
    model is."""
    _, net, _ = wrapped(made)
    assert isinstance(net, torch.nn.Module) and isinstance(net, torch.nn.Linear)
    assert not isinstance(net, torch.nn.Sequential)
    assert [id(parameter) for parameter in net.parameters()] == [id(entry) for entry in net.module.parameters()]
    outer = torch.nn.ModuleDict({"net": net})
    assert [name for name, _ in outer.named_parameters()] == ["net.weight", "net.bias"]
    assert sorted(net.state_dict()) == ["bias", "weight"]
    assert net.eval() is net and not net.module.training
    assert net.train().training
    net.note = 3
    assert net.module.note == 3


def test_rates_follow_the_batch_only_while_a_step_is_taken(
    made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 4 times the base batch SGD steps at 4 times the rate, and between steps shows the user's."""
    monkeypatch.setenv("SELASTIC_BATCH", "16")
    job, net, optimizer = wrapped(made, batch=4, lr="linear")
    used = []
    optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))
    for _ in job.epochs(1):
        for batch in job.loader(DATA):
            job.step(loss_of(net, batch))
            assert optimizer.param_groups[0]["lr"] == 0.1
    assert used == pytest.approx([0.4, 0.4])


@pytest.mark.parametrize("batch", [2, 4, 20])
def test_averaged_weights_reach_as_many_samples_back(
    made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """What torch's AveragedModel still holds of its first weights after an epoch of 20 samples is the same at any
    batch, as if each step of 4 samples had kept 9 tenths."""
    monkeypatch.setenv("SELASTIC_BATCH", str(batch))
    job, net, optimizer = wrapped(made, batch=4, max_batch=20)
    optimizer.param_groups[0]["lr"] = 0.0
    ema = torch.optim.swa_utils.AveragedModel(
        net.module, avg_fn=lambda average, value, _: average.lerp(value, 1 - job.decay(0.9))
    )
    job.keep(ema=ema)
    ema.update_parameters(net.module)  # the first one copies
    with torch.no_grad():
        net.bias.zero_()
        ema.module.bias.fill_(1.0)
    for _ in job.epochs(1):
        for part in job.loader(DATA):
            if job.step(loss_of(net, part)):
                ema.update_parameters(net.module)
    assert ema.module.bias.item() == pytest.approx(0.9**5)
    with refused(r"job.decay\(1.5\) is not accepted; accepted: 0 to 1"):
        job.decay(1.5)


def test_gradients_are_clipped_and_accumulated(made: list[elastic.Job]) -> None:
    """Micro batches add up to one step, whose gradient clip_norm limits."""
    job, net, optimizer = wrapped(made, micro_batch=3)
    norms = []
    optimizer.register_step_pre_hook(lambda *_: norms.append(float(net.weight.grad.norm())))
    for _ in job.epochs(1):
        stepped = [job.step(loss_of(net, batch), clip_norm=1e-3) for batch in job.loader(DATA)]
    assert stepped == [False, False, True, False, False, True, False, True]
    assert all(norm <= 1.001e-3 for norm in norms) and len(norms) == 3


@pytest.mark.parametrize("scales", [False, True])
def test_gradients_are_clipped_by_value(made: list[elastic.Job], scales: bool) -> None:
    """Before they are by norm, and as the optimizer takes them: not as a gradient scaler has multiplied them."""
    job = elastic.join(batch=20)
    made.append(job)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scales else None
    net, seen = job.wrap(model, optimizer, scaler=scaler), []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.clone()))
    for _ in job.epochs(2):
        for batch in job.loader(DATA):
            loss = 100.0 * loss_of(net, batch)
            (own,) = torch.autograd.grad(loss, [model.weight], retain_graph=True)
            job.step(loss, clip_value=3.0, clip_norm=1.0 if job.epoch else None)
            assert own.abs().max() > 3.0
            if not job.epoch:
                assert torch.allclose(seen[-1], own.clamp(-3.0, 3.0))
    assert seen[1].norm() <= 1.0


def test_evaluation_modes_and_errors_stay_inside_once(made: list[elastic.Job]) -> None:
    """A function that leaves the model in eval mode does no harm; its error is raised as it is."""
    job, net, _ = wrapped(made)
    for _ in job.epochs(1):
        assert job.once(lambda: net.eval().training) is False
        assert net.training
        with refused("returned a Wrapped that cannot be sent"):
            job.once(net.eval)
        with pytest.raises(ZeroDivisionError):
            job.once(lambda: 1 / 0)


def test_a_loader_left_early_ends_its_epoch(made: list[elastic.Job]) -> None:
    """`break` in the inner loop goes on with the next epoch, from its beginning."""
    job, net, _ = wrapped(made)
    seen = []
    for epoch in job.epochs(2):
        for batch in job.loader(DATA):
            job.step(loss_of(net, batch))
            seen.append((epoch, len(batch[0])))
            break
    assert seen == [(0, 8), (1, 8)]


def test_the_order_of_a_large_dataset_is_computed(made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """From some length on. A pass under way goes on as it began: a release before this one has drawn its order."""
    monkeypatch.setattr(epochs, "COMPUTED_FROM", 20)
    samples = TensorDataset(torch.arange(20.0)[:, None], torch.zeros(20, 1))
    job = elastic.join(batch=8)
    made.append(job)
    model = torch.nn.Linear(1, 1)
    net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    seen = []
    for epoch in job.epochs(3):
        if epoch == 2:  # as if it had begun before
            job._session.state.progress.pass_samples = 20
            job._session.state.progress.computed = False
        for batch in job.loader(samples):
            seen += [int(value) for value in batch[0]]
            job.step(loss_of(net, batch))
    seed = job._session.tuning.seed
    expected = [order(20, seed, epoch, 0, shuffle=True, computed=epoch < 2)[:] for epoch in range(3)]
    assert seen == [int(index) for one in expected for index in one]
    assert sorted(seen) == sorted([*range(20)] * 3)
    assert not TrainingProgress(**{"epoch": 1, "pass_samples": 20}).computed


def test_two_loaders_in_an_epoch(made: list[elastic.Job]) -> None:
    """Several passes per epoch follow each other, each complete."""
    job, net, _ = wrapped(made)
    sizes = []
    for _ in job.epochs(1):
        for data in (DATA, TensorDataset(*DATA[:5])):
            for batch in job.loader(data):
                job.step(loss_of(net, batch))
                sizes.append(len(batch[0]))
    assert sizes == [8, 8, 4, 5]


def test_wrong_uses_before_the_loop(made: list[elastic.Job]) -> None:
    """Joining or wrapping twice, no model, no optimizer, what cannot be kept, a loader or once without epochs."""
    with refused("join\\(batch=0\\)"):
        elastic.join(batch=0)
    job = elastic.join(batch=8)
    made.append(job)
    with refused("join\\(\\) was called twice"):
        elastic.join(batch=8)
    with refused("before job.wrap"):
        next(iter(job.epochs(1)))
    model = torch.nn.Linear(3, 1)
    with refused("a torch.nn.Module"):
        job.wrap(len, torch.optim.SGD(model.parameters()))
    with refused("the optimizer Linear"):
        job.wrap(model, model)
    with refused("needs an optimizer"):
        job.wrap(model, [])
    job.wrap(model, torch.optim.SGD(model.parameters()))
    with refused("job.wrap\\(\\) was called twice"):
        job.wrap(model, torch.optim.SGD(model.parameters()))
    with refused("keep\\(steps=...\\) was given a int"):
        job.keep(steps=3)
    with refused(r"a job.loader\(\) was iterated outside job.epochs"):
        next(iter(job.loader(DATA)))
    with refused("before the loop"):
        job.save("model.pt")
    with refused("without a batch of job.loader"):
        job.step(torch.zeros((), requires_grad=True))


def test_wrong_uses_in_the_loop(made: list[elastic.Job]) -> None:
    """A step left out or made twice, a loss that is no scalar, nested loaders, late wrap and keep, epochs twice."""
    job, net, _ = wrapped(made)
    epochs = job.epochs(1)
    next(epochs)
    with refused("job.wrap\\(\\) was called after"):
        job.wrap(net.module, None)
    with refused("job.keep\\(\\) was called after"):
        job.keep(more=net.module)
    with refused("epochs\\(\\) was called twice"):
        next(job.epochs(1))
    batches = iter(job.loader(DATA))
    batch = next(batches)
    with refused("scalar"):
        job.step((net(batch[0]) - batch[1]) ** 2)
    with refused("inside another loader"):
        next(iter(job.loader(DATA)))
    job.step(loss_of(net, batch))
    with refused("without a batch of job.loader"):
        job.step(loss_of(net, batch))
    next(batches)
    with refused("was not called for a batch"):
        next(batches)


def test_what_belongs_to_another_model_or_optimizer_is_not_wrapped(made: list[elastic.Job]) -> None:
    """An optimizer of other parameters, a scheduler of another optimizer, a model that is wrapped already."""
    job = elastic.join(batch=8)
    made.append(job)
    model, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    right, wrong = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, other))
    with refused("the SGD holds no parameter of this model"):
        job.wrap(model, wrong)
    with refused("a StepLR of another optimizer, whose state would not survive"):
        job.wrap(model, right, torch.optim.lr_scheduler.StepLR(wrong, 1))
    with refused("a DataParallel; give it the model inside"):
        job.wrap(torch.nn.DataParallel(model), right)
    job.wrap(model, right)


class NoRate(torch.optim.SGD):
    """As Transformers' Adafactor by default: without a rate that anybody else could change."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.param_groups[0]["lr"] = None


def test_an_optimizer_that_job_step_cannot_step_is_refused_by_wrap(made: list[elastic.Job]) -> None:
    """One that needs a closure, and one without a rate: before the first step, or the first change of the batch."""
    job = elastic.join(batch=8)
    made.append(job)
    model = torch.nn.Linear(3, 1)
    with refused("a LBFGS, whose step.. computes the loss again"):
        job.wrap(model, torch.optim.LBFGS(model.parameters()))
    with refused("a NoRate with lr=None, which no rule can change"):
        job.wrap(model, NoRate(model.parameters()))
    job.wrap(model, torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1)))


def test_a_loss_that_the_script_has_scaled_is_refused(made: list[elastic.Job]) -> None:
    """Scaled twice and unscaled once, the gradients would be thousands of times too large, without an error."""
    job = elastic.join(batch=8)
    made.append(job)
    model = torch.nn.Linear(3, 1)
    scaler = torch.amp.GradScaler("cpu")
    net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
    for _ in job.epochs(1):
        for batch in job.loader(DATA):
            with refused("the script called scale.. of the GradScaler"):
                job.step(scaler.scale(loss_of(net, batch)))
            job.stop()
            break


class NotSent(torch.utils.data.Dataset[Any]):
    """A dataset that only this process can read."""

    def __init__(self) -> None:
        self.read = lambda index: torch.zeros(3)

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.read(index)


def test_what_a_stranger_tries_first(made: list[elastic.Job]) -> None:
    """Options of nobody's, a wrapped model wrapped, evaluation by job.loader(), backward by the script, a dataset that
    loader workers cannot be given: one sentence in place of a traceback, or of a failure after the first resize."""
    job = elastic.join(batch=8)
    made.append(job)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for options in ({"find_unused": True}, {"process_group": None}):
        with refused(r"is not known; accepted: strategy, .*find_unused_parameters"):
            job.wrap(model, optimizer, **options)
    with torch.device("meta"):
        blank = torch.nn.Linear(3, 1)
    with refused("parameter weight is on the meta device"):
        job.wrap(blank, torch.optim.SGD(blank.parameters(), lr=0.1))
    with refused("the Adagrad has made its state of a model on the meta device"):
        check_wrap(blank, [torch.optim.Adagrad(blank.parameters())], [])
    net = job.wrap(model, optimizer)
    for shard in (lambda model: None, "layers"):
        with refused(r"shard=.*accepted: function\(model, mesh\)"):
            check_shard(shard)
    with refused("what an earlier job.wrap"):
        check_wrap(net, [optimizer], [])
    for _ in job.epochs(1):
        with refused(r"job.loader\(num_worker=...\) is not known"):
            job.loader(DATA, num_worker=2)
        with refused("NotSent or its collate_fn cannot be sent to loader workers"):
            next(iter(job.loader(NotSent(), num_workers=1, multiprocessing_context="spawn")))
        for batch in job.loader(DATA):
            loss = loss_of(net, batch)
            loss.backward()
            with refused(r"backward\(\) had run on this loss already"):
                job.step(loss)
            break
        with refused("evaluate with a DataLoader of your own"):
            for _ in job.loader(DATA):
                pass
        job.stop()


def test_an_old_torch_cuts_up_no_model_on_cpus(made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fully_shard needs GPUs strategy="fsdp" is refused in wrap(), not in the first forward pass."""
    monkeypatch.setattr(mesh, "CUTS_ON_CPUS", False)
    model = torch.nn.Linear(3, 1)
    job = elastic.join(batch=8)
    made.append(job)
    with refused("strategy='fsdp'.*needs torch 2.8, and this is"):
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="fsdp")


def test_what_wrap_returned_is_not_copied(made: list[elastic.Job], tmp_path: Path) -> None:
    """torch.save, deepcopy and averages of it would take a worker's world with them; the model itself is for that."""
    _, net, _ = wrapped(made)
    for copied in (lambda: copy.deepcopy(net), lambda: torch.save(net, tmp_path / "net.pt")):
        with refused("cannot be copied, saved or sent; take the model itself"):
            copied()
    assert copy.deepcopy(net.module).weight.equal(net.weight)


def test_a_loss_that_no_other_rank_would_learn_from(made: list[elastic.Job]) -> None:
    """The model called instead of what wrap() returned, and a loader of the script's own: noticed at the first step."""
    job, net, _ = wrapped(made)
    before = net.weight.detach().clone()
    for _ in job.epochs(1):
        for batch in torch.utils.data.DataLoader(DATA, 8):
            with refused("without a batch of job.loader"):
                job.step(loss_of(net, batch))
            break
        for batch in job.loader(DATA):
            with refused("not computed by what job.wrap"):
                job.step(loss_of(net.module, batch))
            job.stop()
            break
    assert torch.equal(net.weight, before) and job.global_step == 0


def test_steps_of_the_scripts_own_are_noticed(made: list[elastic.Job]) -> None:
    """optimizer.step() and scheduler.step() in the loop, of wrapped and of forgotten ones; a kept one is let be."""
    job, net, optimizer = wrapped(made, scheduler=True)
    critic = torch.nn.Linear(3, 1)
    forgotten, own = (torch.optim.Adam(critic.parameters()) for _ in range(2))
    job.keep(critic=critic, own=own)
    for _ in job.epochs(1):
        forgotten.step()  # outside of the loop over a loader
        for batch in job.loader(DATA):
            own.step()
            with refused(r"step\(\) of a SGD"):
                optimizer.step()
            with refused(r"step\(\) of a Adam"):
                forgotten.step()
            loss = loss_of(net, batch)
            job._session.optimizers().schedulers[0].step()
            with refused(r"step\(\) of the LinearLR"):
                job.step(loss)
            job.stop()
            break


def test_importing_the_shim_does_not_import_torch() -> None:
    """The command line and the daemon import the request's grammar in milliseconds, without torch."""
    code = "import sys, slurm_elastic.protocol.request, slurm_elastic.trainer_shim; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(NAMESPACE)}, capture_output=True)
    assert done.stdout.strip() == b"False", done.stderr


class Tracker:
    """What a script keeps beside its model."""

    def __init__(self, best: Any) -> None:
        self.best = best

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


def test_what_no_checkpoint_holds_is_said_at_the_first_step(made: list[elastic.Job], tmp_path: Path) -> None:
    """Not when a checkpoint is loaded after a week: the part and its type; and of a result of job.once()."""
    job, net, _ = wrapped(made, checkpoints=tmp_path)
    job.keep(tracker=Tracker(Path("x")))
    for _ in job.epochs(1):
        with refused(
            r"job.once\(<lambda>\) returned a pathlib\S+Path, which no checkpoint holds; accepted: .*safe_globals"
        ):
            job.once(lambda: Path("x"))
        for batch in job.loader(DATA):
            with refused(r"'tracker' has a pathlib\S+Path at \['best'\], which no checkpoint holds; .*safe_globals"):
                job.step(loss_of(net, batch))
            break
        break
    job.close()
    assert not list(tmp_path.glob("step-*"))
    found = None
    for best in (Path("x"), None):  # the second run finds what the first one has kept
        job, net, _ = wrapped(made, checkpoints=tmp_path, safe_globals=[type(Path("x"))])
        tracker = Tracker(best)
        job.keep(tracker=tracker)
        for _ in job.epochs(1):
            job.once(lambda: Path("y"))
            for batch in job.loader(DATA):
                job.step(loss_of(net, batch))
        found = tracker.best
        job.close()
    assert found == Path("x")


def test_checkpoints_without_a_supervisor(made: list[elastic.Job], tmp_path: Path) -> None:
    """join(checkpoints=...) alone: a second run of the script finds the training finished, with its parameters."""
    parameters = []
    for _ in range(2):
        job, net, _ = wrapped(made, checkpoints=tmp_path)
        steps = 0
        for _ in job.epochs(1):
            for batch in job.loader(DATA):
                job.step(loss_of(net, batch))
                steps += 1
        parameters.append(net.weight.detach().clone())
        job.close()
    assert steps == 0
    assert torch.equal(*parameters)
