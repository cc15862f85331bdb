"""`selastic rehearse` says of a script that is right that all held, and finds what is wrong in one that is not.

Faults, one of each kind; `make test` tries some, `make test-rehearse` all (SELASTIC_REHEARSE_ALL=1). Where the
product mends or refuses a fault by itself, a switch at the head of the script turns that off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from local_run import rehearsal

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.protocol.messages import Happening
from slurm_elastic.trainer_shim.rehearse.driven import Director
from slurm_elastic.trainer_shim.rehearse.findings import Row, Trained, _twice, _written, compare
from slurm_elastic.trainer_shim.training.rehearsed import DRAWS, Rehearsed

EVERY = os.environ.get("SELASTIC_REHEARSE_ALL") == "1"
HEAD = """
import torch
import torch.nn.functional as F
import slurm_elastic.trainer_shim as elastic
generator = torch.Generator().manual_seed(1)
x = torch.randn(96, 8, generator=generator, dtype=torch.float64)
y = torch.randn(96, 1, generator=generator, dtype=torch.float64)
data = torch.utils.data.TensorDataset(x, y)
torch.manual_seed(0)
layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Identity(), torch.nn.Linear(16, 1)
model = torch.nn.Sequential(*layers).double()
"""
WRAPPED = (
    HEAD
    + """
job = elastic.join(batch=12, lr="none"{join})
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=job.steps(4, 96))
{before}
net = job.wrap(model, optimizer, schedule{wrap})
for epoch in job.epochs(4):
    for a, b in job.loader(data):
        loss = {loss}
        {step}
        {after}
    {epoch}
"""
)
OWN = (
    HEAD
    + """
job = elastic.join(batch=12{join})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
{before}
net = job.replicate(model)
job.keep(optimizer=optimizer{keep})
while job.next(40):
    micros = job.share(3)
    first = job.global_step % 8 * 12
    {top}
    for number in micros:
        a, b = {batch}
        ({loss} / len(micros)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
LOADED = (
    HEAD
    + """
job = elastic.join(batch=12)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler(enabled=False)
net = job.replicate(model)
job.keep(optimizer=optimizer, scaler=scaler)
for epoch in job.epochs(4):
    for i, (a, b) in enumerate(job.loader(data)):
        scaler.scale(F.mse_loss(net(a), b) / 4).backward()
        if i % 4 == 3:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
)
LOSS, BATCH = "F.mse_loss(net(a), b)", "x[first + 4 * number :][:4], y[first + 4 * number :][:4]"


def wrapped(loss: str = LOSS, **parts: str) -> str:
    step = parts.pop("step", "job.step(loss)")
    names = {"join": "", "before": "", "wrap": "", "after": "", "epoch": "", "optimizer": "AdamW", **parts}
    return WRAPPED.format(loss=loss, step=step, **names)


def own(loss: str = LOSS, batch: str = BATCH, **parts: str) -> str:
    return OWN.format(loss=loss, batch=batch, **{"join": "", "before": "", "keep": "", "top": "", **parts})


SHIM = "slurm_elastic.trainer_shim"


def without(place: str, *functions: str, gives: str = "None") -> str:
    """A switch: these functions of the product's do nothing, in the workers of a script."""
    module, _, owner = place.partition(":")
    lines = [f"import {SHIM}.{module} as module"]
    for name in functions:  # a name that is not there any more ends the script
        called = f"module.{owner}{'.' * bool(owner)}{name}"
        lines += [called, f"{called} = lambda *args, **kwargs: {gives}"]
    return "\n".join(lines) + "\n"


COMPARED = without("training.guards.replica_check:ReplicaCheck", "heard", "compare", gives="''")
ALIKE = without("training.guards.replica_check:ReplicaCheck", "_check_inputs")
LEFT = (
    without("loops.left_gradients:LeftGradients", "end", "check")
    + without("loops.enumerated", "around", gives="([], [])")
    + without("loops.iterations:OwnLoop", "_tell_apart")
)
ARRIVES = without("state.kept_parts:State", "has_arrived", gives="True")
FREEZES = without("state.kept_parts:State", "freeze") + without("parallel.ddp:Trained", "differ", gives="False")
LOOKS = without("training.session", "look_ahead") + without("checkpoint.contents", "check_tensors")
FIXED = without("training.guards.first_step", "check_graph")
FILLED = f"import {SHIM}.parallel.gradient_norms as module\nmodule._filled = lambda grad: grad\n"
GROUPS = without("training.optimizer_step:OptimizerSteps", "check_groups")
APART = without("loops.iterations:OwnLoop", "_tell_apart")
CALLS = without("training.guards.first_calls:FirstCalls", "call", gives="args[1](*args[2], **args[3])")
CARRIED = without("training.guards.carried:Carried", "look")
NOTICES = f"import {SHIM}.node.worker_process as module\nmodule.NOTICES = ()\n"

OUTSIDE = """
class Scaled(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x) / (1 + self.calls / 4)
model[3] = Scaled(16, 1).double()
"""
STREAM = """
def blocks():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(4, 8, generator=generator, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
stream = blocks()
"""
LABELLED = "(lambda kept: ((net(a) - b) ** 2)[kept].mean())(a[:, 0] > a[:, 0].median() - 1)"
SPARSE = "model.register_buffer('graph', torch.eye(3).to_sparse())"
WORDS = """
model = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Flatten(), torch.nn.Linear(32, 1)).double()
data = torch.utils.data.TensorDataset(x.abs().long(), y)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = None
"""
STATIC = (
    HEAD
    + """
job = elastic.join(batch=12, micro_batch=3, lr="none")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
net = job.wrap(model, optimizer, static_graph=True)
for epoch in job.epochs(4):
    for a, b in job.loader(data):
        job.step(F.mse_loss(net(a), b))
"""
)
EXTRA = """
class Scaled(torch.nn.Linear):
    seen = 1.0
    def forward(self, x):
        self.seen = self.seen * 0.9 + float(self.weight.detach().abs().max())
        return super().forward(x) / self.seen
    def get_extra_state(self):
        return {"seen": self.seen}
    def set_extra_state(self, state):
        self.seen = state["seen"]
model[3] = Scaled(16, 1).double()
"""
LATE = """
late = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
model.register_parameter("late", late)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p is not late], lr=0.05)
"""
UNDISTURBED = "parameters as undisturbed"
WENT = "grow, kill and shrink"
SOME = {
    "frozen-at-boundary": (FREEZES + own(top="model[0].requires_grad_(job.global_step % 2 == 0)"), WENT),
    "scaler-accumulation": (LEFT + LOADED, UNDISTURBED),
    "extra-state": (ARRIVES + wrapped(before=EXTRA), UNDISTURBED),
    "usr1-to-steps, a file that every rank writes, a rate on one rank": (
        COMPARED
        + own(top="open('log.txt', 'a').write('done'); optimizer.param_groups[0]['lr'] = 0.05 / (1 + job.rank)"),
        "USR1 to workers and agents",
        "log.txt is written by several",
        "another value of 0.weight after step",
    ),
}
OTHERS = {
    "stream": (ALIKE + CARRIED + own(batch="next(stream)", before=STREAM), UNDISTURBED),
    "sparse-buffer": (LOOKS + wrapped(before=SPARSE), WENT),
    "sparse-gradient-wrap": (FILLED + wrapped(before=WORDS), "linalg_vector_norm"),
    "static-graph-accumulation": (FIXED + STATIC, WENT),
    "a mean over something else than samples": (wrapped(LABELLED), UNDISTURBED),
    "state that no state_dict has": (CALLS + wrapped(before=OUTSIDE), UNDISTURBED),
    "lines that end with a restart": (
        wrapped(after="if job.generation < 3: print('loss', float(loss.detach()))"),
        "the output has",
    ),
    "lines that one worker writes twice": (
        wrapped(after="for _ in range(1 + (job.generation > 1)): print('loss', float(loss.detach()))"),
        "lines in ",
    ),
    "a file that only the first world writes": (
        wrapped(after="job.generation > 1 or job.global_step < 8 or open('last.txt', 'w')"),
        "last.txt is not written",
    ),
    "a counter of its own": (
        CARRIED + own("F.mse_loss(net(a), b) * 0.9 ** count", before="count = 0", top="count += 1"),
        UNDISTURBED,
    ),
    "a generator of the script's": (
        CARRIED + own("F.mse_loss(net(a) + torch.randn(4, 1, generator=generator), b)"),
        UNDISTURBED,
    ),
    "a parameter changed by one rank": (
        wrapped(after="job.rank == 1 and model[3].bias.detach().add_(1)"),
        "holds another value of 3.bias",
    ),
    "a schedule that only rank 0 steps": (
        COMPARED
        + own(
            before="schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)",
            top="job.rank or schedule.step()",
            keep=", schedule=schedule",
        ),
        "lr of optimizer's group 0 is",
    ),
    "a group that is added in the loop": (
        GROUPS + wrapped(before=LATE, after="if job.global_step == 2: optimizer.add_param_group({'params': [late]})"),
        WENT,
    ),
    "a step that one rank leaves out": (APART + own(top="if job.rank: micros = []"), ""),
    "an error on a joiner": (wrapped(after="assert job.world_size == 1"), "AssertionError"),
    "positions of the wrong rank": (
        own(batch="x[first + 4 * micros.positions.start :][:4], y[first :][:4]"),
        UNDISTURBED,
    ),
}
FAULTS: dict[str, tuple[str, ...]] = {**SOME, **(OTHERS if EVERY else {})}


def rehearsed(folder: Path, script: str, *words: str, **more: str) -> tuple[int, str]:
    """The exit code and the table."""
    (folder / "train.py").write_text(script)
    return rehearsal(folder, *words, "train.py", **more)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(tmp_path: Path, name: str) -> None:
    """A script with one fault, or several: exit code 1, and for each the row that says it."""
    script, *rows = FAULTS[name]
    if "usr1-to-steps" in name:
        (tmp_path / "sitecustomize.py").write_text(NOTICES)  # of the agents, too
    code, text = rehearsed(tmp_path, script, "--steps", "12")
    assert code == 1, text
    failed = [line for line in text.splitlines() if line.startswith("FAIL")]
    for words in rows:
        assert any(words in line for line in failed), text


def test_a_launcher_in_front(tmp_path: Path) -> None:
    """Of `srun selastic rehearse` in a job of two tasks the first one says what the second would do."""
    for task, told in (("0", "FAIL  started once  srun has started the training 2 times"), ("1", "")):
        code, text = rehearsed(tmp_path, own(), SLURM_STEP_NUM_TASKS="2", SLURM_PROCID=task)
        assert code == 1 and text.startswith(told) and bool(text) == bool(told), text


LAYERS = """
from torch import rand as drawn
layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
model = torch.nn.Sequential(*layers).double()
import aside
"""
WRITES = """job.save('model.pt')
    late.step()
    with open(f'log{job.rank}.txt', 'a') as log:
        print('pass', epoch, file=log)
    if job.rank == 0:
        print('pass', epoch, {'loss', 'rate', 'norm'}, tempfile.mkdtemp() + '/last.pt')"""
BEFORE = """import tempfile
late = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
job.keep(late=late)"""
"""It steps behind a pass, where a worker that starts again begins."""
COUNTED = "count = globals().get('count', 0) + 1"
NOISY = "F.mse_loss(net(a + torch.randn_like(a) / 8), b * drawn(len(a), 1))"


@pytest.mark.parametrize("script", [wrapped(NOISY, epoch=WRITES, before=BEFORE, after=COUNTED), own()][: 1 + EVERY])
def test_all_holds(tmp_path: Path, script: str) -> None:
    """A script that is right, whose training is shorter than the steps asked for: exit code 0, and nothing is left.
    What cannot be exact is named: with dropout the runs differ by no more than another seed makes of them."""
    script = script.replace("\njob = ", LAYERS + "\njob = ")
    (tmp_path / "aside.py").write_text("def never():\n    return 1\n")
    code, text = rehearsed(tmp_path, script, "--steps", "40")
    assert code == 0 and "FAIL" not in text, text
    rows = {line[6:].split("  ")[0]: line for line in text.splitlines() if line.startswith("ok")}
    assert list(rows) == [
        WENT,
        "every sample once, in its step",
        UNDISTURBED,
        "schedule",
        "the same on all ranks",
        "files and lines written once",
        "USR1 to workers and agents",
        "lines of the script",
        "random parts",
        *(["random numbers"] if "randn_like" in script else []),
        "BatchNorm",
        "buffers",
        "pause of a resize",
        "with random parts on",
    ], text
    assert "1 > 2 > 2 > 1 workers; one killed" in rows[WENT]
    assert rows["random parts"].endswith("  2: off in both runs") and "  1, F.batch_norm: norm" in rows["BatchNorm"]
    assert rows["buffers"].endswith("3 as undisturbed") or "  1.num_batches_tracked of 3: another" in rows["buffers"]
    assert rows["lines of the script"].endswith(" after the shrink; never: aside.py:2"), text
    if "model.pt" in script:
        assert "2 files, 2 kinds of lines" in rows["files and lines written once"], text
    assert not list(tmp_path.glob("selastic-rehearse-*"))


MIXED = "(lambda other: F.mse_loss(net(a), b[other]))(torch.randperm(len(a)))"
FULL = """
class Dropping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
    def forward(self, x):
        return self.last(F.dropout(self.drop(self.first(x)).tanh(), 0.1, self.training))
model = torch.compile(Dropping().double(), fullgraph=True)
"""


@pytest.mark.skipif(not EVERY, reason="make test-rehearse does")
@pytest.mark.parametrize(
    ("script", "told"),
    [
        (wrapped(MIXED), "not compared: randperm draws for a worker's part as a whole"),
        (wrapped().replace("\njob = ", FULL + "\njob = "), "random parts"),
    ],
)
def test_what_can_only_be_compared_with_another_seed(tmp_path: Path, script: str, told: str) -> None:
    """Samples mixed with others of a worker's part, and dropout in a whole graph that torch.compile() has made."""
    code, text = rehearsed(tmp_path, script, "--steps", "12")
    assert code == 0 and told in text and "with random parts on" in text, text


DRAWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "randn": lambda x: torch.randn(len(x), 2),
    "rand": lambda x: torch.rand(size=(len(x), 2)),
    "randint": lambda x: torch.randint(1000, (len(x),)),
    "randn_like": lambda x: torch.randn_like(x),
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(max=1)),
    "multinomial": lambda x: torch.multinomial(x.abs() + 0.1, 2),
    "normal_": lambda x: x.clone().normal_(),
    "gumbel": lambda x: F.gumbel_softmax(x, dim=1),
    "distribution": lambda x: torch.distributions.Normal(x, 1.0).sample(),
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_sample_has_random_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same ones in any part of a step; others in the next call, and in another step."""
    run = Rehearsed.__new__(Rehearsed)  # made it would change torch for good
    run._note_once = lambda **line: None  # type: ignore[method-assign]
    run._plan = {"random": "off"}
    run._session, run._off = SimpleNamespace(state=SimpleNamespace(progress=SimpleNamespace(step=1))), True  # type: ignore[assignment]
    for owner, names in DRAWS.items():
        for drawn in names.split():
            monkeypatch.setattr(owner, drawn, run._by_row(drawn, getattr(owner, drawn)))
    x = torch.linspace(-1, 1, 24).view(6, 4)

    def part(first: int, last: int) -> list[torch.Tensor]:
        assert run.draws_by_row(range(first, last))
        return [DRAWN[name](x[first:last]) for _ in range(2)]

    whole, parts = part(0, 6), [part(0, 2), part(2, 6)]
    for call in range(2):
        assert torch.equal(whole[call], torch.cat([parts[0][call], parts[1][call]]))
    if name not in ("bernoulli", "multinomial"):
        assert not torch.equal(whole[0], whole[1]) and len(whole[0].unique()) > 1
        run._session.state.progress.step = 2
        assert not torch.equal(part(0, 6)[0], whole[0])


KEYS = """
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.keys, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 1)
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            q, k, v = self.keys(x.view(-1, 1, 8) * self.keys.weight[:5, :]).chunk(3, -1)
            y = F.scaled_dot_product_attention(q, k, v, None, 0.1)
            return self.out(F.dropout(y, 0.1, self.training)).mean(1).float()
data = torch.utils.data.TensorDataset(x.float(), y.float())
model = Attention()
"""


@pytest.mark.skipif(not EVERY, reason="make test-rehearse does")
def test_rounding_is_no_fault(tmp_path: Path) -> None:
    """The bias of an attention's keys has no gradient but rounding, of which Adam makes whole steps. Under autocast all
    is rounded to 16 bits."""
    script = wrapped().replace("\njob = ", KEYS + "\njob = ")
    code, text = rehearsed(tmp_path, script, "--steps", "16")
    assert code == 0 and "keys.bias is off by" in text and "F.dropout, F.scaled_dot_product_attention" in text, text
    assert "ok    autocast" in text, text


ROOT = Path(__file__).parents[4]
EXAMPLES = (
    "demo/train_digits",
    "demo/train_chars",
    "train_ddp",
    "train_adasum",
    "train_fsdp",
    "train_iterations",
    "train_wgan",
    "train_ppo",
    "train_diffusion",
    "train_stream",
)
CONVERTED = {"single": ["--name", "x", "."], "optional_torchrun": []}
"""Scripts that convert leaves nothing of to their author, and their arguments."""


@pytest.mark.skipif(not EVERY, reason="make test-rehearse does")
@pytest.mark.parametrize("name", EXAMPLES)
def test_our_examples_hold(tmp_path: Path, name: str) -> None:
    """Also with numbers drawn in each step, and with shards."""
    shutil.copy(ROOT / "examples" / "demo" / "fake_gpu.py", tmp_path)
    code, text = rehearsed(tmp_path, (ROOT / "examples" / f"{name}.py").read_text())
    assert code == 0, text


@pytest.mark.skipif(not EVERY, reason="make test-rehearse does")
@pytest.mark.parametrize("name", CONVERTED)
def test_what_convert_has_made_holds(tmp_path: Path, name: str) -> None:
    """As it is."""
    pytest.importorskip("libcst")
    from slurm_elastic.client.conversion.rewriting import converted

    place = ROOT / "tests" / "support" / "convert_zoo" / f"{name}.py"
    script = f"import sys\nsys.argv += {CONVERTED[name]}\n" + converted(place.read_text(), place)[0]
    code, text = rehearsed(tmp_path, script)
    assert code == 0, text


def test_what_is_not_accepted(tmp_path: Path) -> None:
    """One sentence, and status 2."""
    assert rehearsed(tmp_path, "", "--steps", "3") == (
        2,
        "selastic: --steps 3 is not accepted; accepted: 12 and more\n",
    )


def test_a_run_beside_one_that_was_killed_ends(tmp_path: Path) -> None:
    """It waits for the length of the other run, which nobody writes any more."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    beside = Rehearsed.__new__(Rehearsed)  # made it would change torch in this process
    beside._plan, beside._folder, beside._length = {"pid": gone.pid}, tmp_path, 0
    with pytest.raises(TrainingError, match="selastic rehearse has ended"):
        beside._wait_for_length()


@pytest.mark.parametrize(("what", "waits"), [("accepted", True), ("failed", False), ("withdrawn", False)])
def test_a_resize_that_does_not_come_is_not_waited_for(tmp_path: Path, what: str, waits: bool) -> None:
    """A job that is about to end withdraws it, and so does one that is over."""
    Director(lambda resize: None, tmp_path / "failed").tell(Happening(1, what, 1, (), 12, 0.0))
    assert (tmp_path / "failed").exists() != waits


def test_another_number_of_steps_is_a_fault(tmp_path: Path) -> None:
    """Both runs ended well, and nothing else can be compared."""
    for name, steps in (("plain", 37), ("resized", 29)):
        record = tmp_path / name / "record"
        record.mkdir(parents=True)
        (record / "killed").touch()
        (record.parent / "out.txt").touch()
        line = {"worker": "a", "step": steps, "sums": {}, "values": {}, "rank": 0, "size": 1, "cuts": ""}
        (record / "0.jsonl").write_text("".join(json.dumps({**line, "generation": g}) + "\n" for g in range(1, 5)))
    plain, resized = (Trained(tmp_path / name, 0) for name in ("plain", "resized"))
    failed = [row for row in compare(plain, resized, lambda: plain) if not row.held]
    assert Row("number of steps", False, "29; undisturbed: 37") in failed
    assert "number of steps" not in [row.name for row in compare(plain, plain, lambda: plain)]


@pytest.mark.parametrize(("times", "found"), [(1, ""), (2, "a.2 wrote 20 lines in 10 steps: loss 0.5")])
def test_lines_that_one_worker_writes_twice(tmp_path: Path, times: int, found: str) -> None:
    """Of each step; another worker, and a line at each start, count for themselves."""
    for name in ("plain", "resized"):
        (tmp_path / name / "record").mkdir(parents=True)
        (tmp_path / name / "cwd").mkdir()
        (tmp_path / name / "out.txt").write_text("begins\n" + "loss 0.5\n" * 20)
    for number, steps in ((1, 20), (2, 10)):
        logs = tmp_path / "resized" / "job" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        (logs / f"a.{number}.log").write_text("begins\n" * 4 + "loss 0.5\n" * steps * (times if number == 2 else 1))
        lines = [{"worker": f"a.{number}", "step": step, "sums": {}} for step in range(1, steps + 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        for name in ("plain", "resized")[number - 1 :]:
            (tmp_path / name / "record" / f"{number}.jsonl").write_text(text)
    plain, resized = (Trained(tmp_path / name, 0) for name in ("plain", "resized"))
    assert _twice(plain, resized) == found


@pytest.mark.parametrize("wrote", ["rate: 0.1\n", ""])
def test_a_file_whose_name_holds_the_time(tmp_path: Path, wrote: str) -> None:
    """Its lines are those of the file of that name but for numbers."""
    for name, folder, text in (("plain", "run-20260101", "rate: 0.2\n"), ("resized", "run-20260102", wrote)):
        (tmp_path / name / "record").mkdir(parents=True)
        (tmp_path / name / "cwd" / folder).mkdir(parents=True)
        (tmp_path / name / "cwd" / folder / "args.yaml").write_text(text)
        (tmp_path / name / "out.txt").touch()
        line = {"step": 1, "file": f"{folder}/args.yaml", "generation": 1, "worker": "a"}
        (tmp_path / name / "record" / "a.jsonl").write_text(json.dumps(line))
    row = _written(*(Trained(tmp_path / name, 0) for name in ("plain", "resized")))
    assert row.held == bool(wrote), row


RAISED = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
  File "/site/torch/nn.py", line 700, in forward
TypeError: no
selastic: worker 0.a.0 exited with code 1
"""
USAGE = """usage: train.py [-h] --lr LR
train.py: error: the following arguments are required: --lr
selastic:   0.a.0| train.py: error: the following arguments are required: --lr
selastic: worker 0.a.0 exited with code 2
"""


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (RAISED, "TypeError: no (train.py:12)"),
        (
            '  File "train.py", line 2\n    def f(:\nSyntaxError: invalid syntax\n',
            "SyntaxError: invalid syntax (train.py:2)",
        ),
        (USAGE, "train.py: error: the following arguments are required: --lr; worker 0.a.0 exited with code 2"),
        ("killed\n", "killed"),
        ("", "it wrote nothing"),
    ],
)
def test_why_a_run_ended(tmp_path: Path, out: str, why: str) -> None:
    """The error with the line of the script, or what the script wrote before it exited."""
    (tmp_path / "record").mkdir()
    (tmp_path / "out.txt").write_text(out)
    assert Trained(tmp_path, 1).why() == why


def test_a_script_that_is_not_elastic(tmp_path: Path) -> None:
    """It is told what it lacks, not that its data set is small."""
    code, text = rehearsed(tmp_path, "print('trained')")
    assert code == 1 and "it made no optimizer step of elastic.join()'s" in text, text
