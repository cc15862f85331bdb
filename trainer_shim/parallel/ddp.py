"""Data parallelism that can be taken apart and put together again around a model that stays where it is.

Ranks agree on when to switch without a collective of their own: a hidden parameter of a few numbers rides in
DistributedDataParallel's gradient all-reduce, and its "gradient" is whatever this rank has to say. Where it cannot
(what comes back is no mean, or parameters are looked for from the outputs) the vote travels beside the backward pass.
The user's module is never changed: its state_dict has no prefix and knows nothing of the hidden parameter.
"""

import inspect
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro
from ..world.agreement import NO_VOTE, VOTE_SIZE, WEIGHT, Tally, TallyReader, Vote, attempt
from ..world.process_group import World
from . import own_steps
from .compiled import Calls, total
from .gradient_norms import GradientNorms, Squares
from .reduction.base import ByBucket
from .reduction.mean import Mean
from .strategy import Strategy, on_meta, zeros_of

UNSYNCED: dict[str, Any] = (
    {"init_sync": False} if "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters else {}
)
"""Has the constructor broadcast nothing; torch 2.4 broadcasts the model, which is right too and takes longer."""


SIZES = (
    "selastic: the model failed on {} samples: parts of a step have several sizes, as one rank cuts a step in two now "
    "and then to measure the gradient noise, and a pass ends with a short one; a model of one size N, such as a CUDA "
    "graph, takes join(micro_batch=N, slice=N)\n"
)
CAPTURED = (
    "what {}() returned was called while a CUDA graph is captured, which would hold this world's communication, and "
    "replay it in the next world; accepted: torch.cuda.make_graphed_callables(), or "
    "torch.compile(mode='reduce-overhead'), of the model before, in which nothing is communicated"
)
OWN = ("self", "module", "process_group", "device_mesh", "init_sync")
ACCEPTED = frozenset(inspect.signature(DistributedDataParallel.__init__).parameters) - frozenset(OWN)
"""Options that a script may give; the others are the job's."""


def check_options(call: str, options: Iterable[str], others: str = "") -> None:
    """Raise TrainingError for one that DistributedDataParallel does not have, or that is the job's.

    others: what the call accepts besides.
    """
    for name in options:
        if name not in ACCEPTED:
            raise TrainingError(
                f"{call}({name}=...) is not known; accepted: {others}of DistributedDataParallel's "
                f"{', '.join(sorted(ACCEPTED))}"
            )


class Trained:
    """Which parameters DistributedDataParallel knows of: those that require a gradient when it is made. One that is
    switched on later would get each rank's own gradient, and one that is switched off would be waited for."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._parameters = module, list(module.parameters())
        self._told: list[bool] = []

    def now(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]

    def told(self) -> None:
        """One is made now."""
        self._parameters = list(self._module.parameters())
        self._told = self.now()

    def differ(self, now: list[bool]) -> bool:
        """Whether it was told of others, so that another one is needed."""
        return now != self._told


@contextmanager
def kept_gradients(module: nn.Module) -> Iterator[None]:
    """Behind this a module's gradients are what they were, in memory of their own."""
    kept = [(entry, None if entry.grad is None else entry.grad.clone()) for entry in module.parameters()]
    yield
    for entry, grad in kept:
        entry.grad = grad


class _Outer(nn.Module):
    """What DistributedDataParallel sees: the user's module and the hidden parameter."""

    def __init__(self, module: nn.Module, hidden: nn.Parameter) -> None:
        super().__init__()
        self.module = module
        self.hidden = hidden
        self.values = torch.zeros_like(hidden, requires_grad=False)
        self._carried = NO_VOTE

    def carry(self, values: list[float]) -> None:
        """Set what the next backward carries; nearly always it is what the last one did."""
        if values != self._carried:
            self.values.copy_(torch.tensor(values))
            self._carried = values

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class Replicated(Strategy):
    """A module replicated over the ranks (strategy "ddp"). One rank alone runs it bare."""

    call, call_options = "job.wrap", "strategy, scaler, parallelize, and "
    """What a script makes it by, and which options that takes besides."""

    def __init__(
        self, module: nn.Module, ddp_options: dict[str, Any], reduction: ByBucket | None = None, number: int = 0
    ) -> None:
        """number: as of Calls."""
        check_options(self.call, ddp_options, self.call_options)
        self._by_bucket = reduction or Mean()
        self._hooked = not self._by_bucket.averages
        """Whether the reduction gets each bucket; else DistributedDataParallel takes the mean over the ranks."""
        # What is reachable from the model's outputs alone counts there, and the hidden parameter is not.
        self._rides = not (ddp_options.get("find_unused_parameters") or ddp_options.get("static_graph"))
        """Whether the vote rides along with such a mean."""
        super().__init__(module, self._by_bucket)
        self.ddp_options = {"gradient_as_bucket_view": True, **ddp_options}
        self._ddp: DistributedDataParallel | None = None
        self._outer: _Outer | None = None
        self._trained = Trained(module)
        self._called = False
        self._share = 0.0
        """Of the step under way, this rank's."""
        self._rows = self._most_rows = 0
        """Of the micro batch under way, and the most so far of a step."""
        self._bypass = 0
        self._calls = Calls(module, number)
        self._norms = GradientNorms()
        self._weight: torch.Tensor | None = None
        self._exposed = ExposedCommunication()
        first = next((p for p in module.parameters() if p.is_floating_point()), None)
        # In the parameters' own type it shares their first bucket; half precision would not hold the sums exactly.
        self._dtype = first.dtype if first is not None and first.dtype.itemsize >= 4 else torch.float32
        self._device = first.device if first is not None else torch.device("cpu")

    def connect(self, world: World) -> None:
        # Nothing is broadcast here: that all ranks hold the same parameters before the first step is the caller's care.
        self._world = world
        self._trained.told()
        self._calls.enter(world)
        self._norms.over(self.module.parameters(), shared=world.size > 1)
        if world.size == 1:
            return
        options = {**UNSYNCED, **self.ddp_options}
        if self._hooked or not self._rides:
            if any(self._trained.now()):
                self._ddp = DistributedDataParallel(self.module, process_group=world.group, **options)
            if self._ddp is not None and self._hooked:
                self._ddp.register_comm_hook(None, lambda state, bucket: self._combine(world, bucket))
            return
        hidden = nn.Parameter(torch.zeros(VOTE_SIZE, dtype=self._dtype, device=self._device))
        self._outer = _Outer(self.module, hidden)
        self._ddp = DistributedDataParallel(self._outer, process_group=world.group, **options)
        # The hidden parameter's gradient is among the first; what is queued there runs when all have been computed,
        # and before DistributedDataParallel, which queues later, waits for their means.
        engine: Any = torch.autograd.Variable._execution_engine
        hidden.register_post_accumulate_grad_hook(lambda _: engine.queue_callback(self._computed))

    @property
    def tells_waiting(self) -> bool:  # type: ignore[override]
        return self._rides and not self._hooked

    @property
    def _shared(self) -> bool:
        """Whether there are other replicas."""
        return self._world is not None and self._world.size > 1

    def compile_ahead(self, rows: Collection[int]) -> None:
        def enter(world: World) -> Callable[..., Any]:
            self.connect(world)
            return run

        def run(*args: Any, **kwargs: Any) -> None:
            if self._ddp is None:
                raise AssertionError("no world to rehearse in")
            self._ddp.require_backward_grad_sync = False  # nobody is there
            self._differentiate(total(self._wrapped(*args, **kwargs)))

        try:
            self._calls.rehearse(rows, enter)
        finally:
            self.disconnect()

    def _connect_again(self) -> None:
        """In the same world, of what is trained now; gradients that micro batches have gathered stay."""
        world, ddp = self._world, self._ddp
        if world is None:
            raise AssertionError("called outside a world")
        with kept_gradients(self.module):
            self.disconnect()
            self.connect(world)
        if self._ddp is not None and ddp is not None:
            self._ddp.require_backward_grad_sync = ddp.require_backward_grad_sync

    def disconnect(self) -> None:
        self._ddp = self._outer = self.mesh = self._world = None
        self.reduction.forget()
        for parameter in self.module.parameters():
            parameter.grad = None  # a view into the dropped object's buckets

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        self._bypass += 1
        try:
            yield
        finally:
            self._bypass -= 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._called = self._called or (not self._bypass and torch.is_grad_enabled())
        if not self._bypass and torch.is_grad_enabled():
            self._calls.note(args, kwargs)
            if self._world is not None and not self.void and self._trained.differ(self._trained.now()):
                attempt(self._connect_again, self.on_error, lambda: None)
        if self._bypass or self.void or not torch.is_grad_enabled():
            return self._bare(*args, **kwargs)
        # Buffers and buckets are agreed on in the forward pass.
        run = self._bare if self._ddp is None else self._wrapped
        return attempt(lambda: run(*args, **kwargs), self.on_error, lambda: self._bare(*args, **kwargs))

    def _bare(self, *args: Any, **kwargs: Any) -> Any:
        """Without other ranks; in a step that did not fit without memory, or at least what a backward pass takes."""
        if self.void and self.full:
            with suppress(Exception):  # whatever it computes with what is not there
                return zeros_of(on_meta(self.module), next(self.module.parameters()).device, args, kwargs)
        try:
            with torch.no_grad() if self.void and self.full else nullcontext():
                return self.module(*args, **kwargs)
        except RuntimeError as error:
            if not self._bypass and self._rows < self._most_rows and "must match" in str(error):
                sys.stderr.write(SIZES.format(self._rows))
            raise

    def _wrapped(self, *args: Any, **kwargs: Any) -> Any:
        if self._ddp is None:
            raise AssertionError("called outside a world")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise TrainingError(CAPTURED.format(self.call))
        return self._ddp(*args, **kwargs)

    def expect(self, micro: Micro) -> None:
        self._called = self.void = False
        self._calls.expect(len(micro.indices))
        self._rows, self._most_rows = len(micro.indices), max(self._most_rows, micro.total)
        self._share = micro.rank_samples / micro.total
        self._norms.begin(micro.measured and self.measures, micro.last)
        if self._ddp is not None and self._ddp.require_backward_grad_sync != micro.last:
            self._ddp.require_backward_grad_sync = micro.last

    def backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        if not self.void and not self._called:
            raise TrainingError(
                "job.step(loss): this loss was not computed by what job.wrap() returned, so that no other rank would "
                "learn from it; call that object instead of the model, or of one of the model's methods"
            )
        # On a GPU the reader waits for a copy queued behind the all-reduce: read it a step later to wait for nothing.
        return super().backward(loss, vote)

    def _backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        outer = self._outer
        if outer is None and self._shared:
            return super()._backward(loss, vote)
        if vote is None or outer is None:
            loss.backward()
            self._norms.micro_done()
            if vote is None:
                return None
            sums = Tally.of_one(vote)
            return lambda: sums
        outer.carry(vote.encoded())
        self._differentiate(loss)
        self._exposed.done()
        self._norms.micro_done()
        if vote.has_content:
            outer.carry(NO_VOTE)
        return self._reader(outer.hidden)

    def _micro_done(self, last: bool) -> None:
        self._norms.micro_done()

    def _differentiate(self, loss: torch.Tensor) -> None:
        """Run a backward pass with which gradients travel."""
        if self._outer is None:
            loss.backward()
        else:
            torch.autograd.backward((loss, self._outer.hidden), (None, self._outer.values))

    def _combine(self, world: World, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """What DistributedDataParallel calls with each bucket that is complete."""
        self._norms.travels(bucket.buffer(), self._share, world.group)
        begin = self._by_bucket.own if self._by_bucket.by_steps else self._by_bucket.combine
        combined = begin(bucket, self._share, world.group)
        return combined.then(lambda future: future.value()[0])

    def _computed(self) -> None:
        self._exposed.ready(self._device.type == "cuda")

    def exposed_s(self) -> float:
        return self._exposed.seconds() if self._outer is not None else 0.0

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        world, by_bucket = self._world, self._by_bucket
        if world is None or world.size == 1 or not by_bucket.by_steps:
            super().step(optimizer, scaler)
            return
        attempt(
            lambda: own_steps.step(optimizer, scaler, by_bucket, self._share, world.group), self.on_error, lambda: None
        )

    def squares(self) -> Squares | None:
        found = self._norms.squares()
        if found is None or self._world is None or not (self._hooked and self._shared):
            return found
        own, mean = found
        return own * (self._share * self._world.size) ** 2, mean

    def weight_of(self, reader: TallyReader) -> float | torch.Tensor:
        on_gpu, self._weight = self._weight, None  # it is not waited for
        return super().weight_of(reader) if on_gpu is None else on_gpu

    def _reader(self, hidden: nn.Parameter) -> TallyReader:
        mean, ranks = hidden.grad, self._world.size if self._world is not None else 1
        if mean is None:
            raise AssertionError("the hidden parameter got no gradient")
        hidden.grad = None
        if not mean.is_cuda:
            sums = Tally.of_mean(ranks, mean.tolist())
            return lambda: sums
        self._weight = mean[WEIGHT] * ranks
        copy = torch.empty(VOTE_SIZE, dtype=mean.dtype, pin_memory=True)
        copy.copy_(mean, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

        def read() -> Tally:
            done.synchronize()
            return Tally.of_mean(ranks, copy.tolist())

        return read


class ExposedCommunication:
    """How long a step's gradients travel while its rank computes nothing: `ready` when all own gradients are computed,
    `done` after backward, `seconds` at any time. On a GPU by two events, read when they have passed."""

    def __init__(self) -> None:
        self._ready: Any = None
        self._passing: tuple[Any, Any] | None = None
        self._seconds = 0.0

    def ready(self, cuda: bool) -> None:
        """This rank's own gradients are complete (on a GPU: when the current stream gets there)."""
        self._ready = _mark(cuda)

    def done(self) -> None:
        """The mean over all ranks is there (on a GPU: for whatever comes next in its stream)."""
        ready, self._ready = self._ready, None
        if ready is None:
            self._seconds = 0.0
        elif isinstance(ready, float):
            self._seconds = time.perf_counter() - ready
        elif self._passing is None:
            self._passing = (ready, _mark(cuda=True))

    def seconds(self) -> float:
        """Of the last step for which it is known; 0: not known."""
        if self._passing is not None and self._passing[1].query():
            begun, ended = self._passing
            self._passing = None
            self._seconds = begun.elapsed_time(ended) / 1000
        return self._seconds


def _mark(cuda: bool) -> Any:
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
