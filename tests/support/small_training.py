"""A training script small enough for tests of `selastic run`.

Arguments: samples, epochs, seconds to nap after a step. A file `go` in its folder ends the naps. In the second half of
the training they last twenty times as long, so that it does not end before the test is done with it.
"""

from __future__ import annotations

TRAIN = """
import os, sys, time, torch
import slurm_elastic.trainer_shim as elastic
samples, epochs, nap = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
job = elastic.join(batch=16, max_batch=64, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(samples, 4), torch.randint(0, 3, (samples,)))
model = torch.nn.Linear(4, 3).to(job.device)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in job.epochs(epochs):
    for x, y in job.loader(data):
        job.step(torch.nn.functional.cross_entropy(net(x), y))
        nap = float(sys.argv[3]) * (1 if job.samples < samples * epochs / 2 else 20)
        time.sleep(0 if os.path.exists('go') else nap)
job.log(f"trained {job.samples} samples in generation {job.generation}")
"""
