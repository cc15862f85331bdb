"""A job of Ray Train that takes the nodes that come: `TorchTrainer` with an elastic number of workers, one on each
Ray node. At each change Ray Train starts its workers anew from the last checkpoint that they reported."""

import tempfile
import time
from pathlib import Path

import ray.train
import torch
from cluster_ray import connect
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

BATCH = 32


def train(config):
    folder = Path(config["folder"])
    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    model, step = torch.nn.Linear(8, 1), 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as at:
            kept = torch.load(Path(at, "state.pt"))
        step = kept["step"]
        model.load_state_dict(kept["model"])
    net = prepare_model(model)
    device = next(net.parameters()).device
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    stop = torch.zeros((), device=device)
    while not stop:
        began = time.monotonic()
        x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::size].to(device)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.4 / size)  # in place of a model that takes its time
        step += 1
        with tempfile.TemporaryDirectory() as at:
            if rank == 0:
                with (folder / "done").open("a") as done:
                    done.write(f"{step} {size}\n")
                torch.save({"step": step, "model": model.state_dict()}, Path(at, "state.pt"))
            ray.train.report({"step": step}, checkpoint=Checkpoint(at) if rank == 0 else None)
        if rank == 0:
            (folder / "speed").write_text(f"{BATCH / (time.monotonic() - began)}\n")
        stop.fill_(float((folder / "end").exists()))
        if size > 1:
            torch.distributed.all_reduce(stop)


if __name__ == "__main__":
    connect()
    gpus = torch.cuda.is_available()
    result = TorchTrainer(
        train,
        train_loop_config={"folder": str(Path.cwd())},
        scaling_config=ScalingConfig(num_workers=(1, 4), use_gpu=gpus, elastic_resize_monitor_interval_s=5),
        run_config=RunConfig(
            storage_path=str(Path("results").absolute()),
            failure_config=FailureConfig(max_failures=10),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
    ).fit()
    print(f"{result.metrics['step']} steps done", flush=True)
