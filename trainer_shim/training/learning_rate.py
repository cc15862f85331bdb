"""What join() was given about batch and learning rate, and its effect on the optimizers at one step.

Between steps the optimizers hold the rates that the script and its schedulers gave them; the rule's factor is there
only while a step is taken. So a scheduler that computes from the current rate is never fed a scaled one.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from slurm_elastic.protocol.errors import TrainingError

from ..numerics import noise_scale
from ..numerics.batch import Ramp, Rate, check_batch, rate, resolve_rule
from ..numerics.noise_scale import Noise
from ..state.progress import TrainingProgress


@dataclass(eq=False)
class Tuning:
    """See the module. Batches in samples over the whole job. Everything that changes is in TrainingProgress."""

    base: int
    max_batch: int | None
    rule: str
    micro_batch: int | None
    seed: int
    ramp: float
    each: int = 1
    """Slices and micro batches are multiples of it."""
    shards: int = 0
    """Parts of a deterministic step; 0: an ordinary one."""
    combine: str = "mean"
    """How the ranks' gradients become one; see parallel/choice.py."""
    shares: str = "equal"
    """How a step is shared out over the ranks; see choice.SHARES."""
    fixed: bool = False
    """The script's own loop makes the batch: it stays what join() was given."""
    fitted: int = 0
    """Largest micro batch that was found to fit this rank's memory; 0: not looked for."""
    agreed: int = 0
    """The smallest `fitted` in the current world."""
    wants_noise: bool = False
    """Whether steps of a single rank are cut in two now and then, so that the noise scale can be measured."""
    _optimizers: list[Any] = field(default_factory=list)
    _noise: tuple[tuple[float, float, float], Noise] = ((0.0, 0.0, 0.0), Noise())
    _known: tuple[tuple[float, float], Rate] | None = None

    def limit(self, alone: bool = False) -> int | None:
        """Most samples this rank computes at a time in the current world; None: no limit. alone: others may compute
        more at a time."""
        known = [size for size in (self.micro_batch, (alone and self.fitted) or self.agreed) if size]
        return max(self.each, min(known) // self.each * self.each) if known else None

    def use(self, optimizers: Sequence[Any]) -> None:
        """The optimizers to act on; what `auto` means depends on them."""
        if not optimizers:
            raise TrainingError(
                "job.wrap(model, optimizer) needs an optimizer, a torch.optim.Optimizer of the script's own also"
            )
        self._optimizers = list(optimizers)
        self.rule = resolve_rule(self.rule, [type(entry).__name__ for entry in optimizers])

    def accept(self, batch: int, starting: bool) -> tuple[int, str]:
        """The batch to train with, and what to tell the user about it.

        At the start a batch outside join()'s range raises TrainingError, before any training is spent; later the
        nearest accepted one is used: a mistaken batch is no reason to lose a job.
        """
        if self.fixed:
            said = f"a loop of the script's own keeps its batch of {self.base}, and {batch} was asked for"
            return self.base, said if batch != self.base else ""
        if batch % self.each:
            return self.accept(max(self.base, batch - batch % self.each), starting)
        try:
            return check_batch(batch, self.max_batch), ""
        except TrainingError as error:
            if starting or self.max_batch is None:
                raise
            return self.max_batch, f"{error}; training with {self.max_batch}"

    def change(self, progress: TrainingProgress, batch: int) -> None:
        """Make `batch` the global batch from here on."""
        if progress.batch == 0:
            progress.ramp = (float(batch), float(batch), 0, 0)
        elif progress.batch != batch:
            over = round(self.ramp * progress.pass_samples)
            now = Ramp(*progress.ramp).towards(batch, progress.samples, over)
            progress.ramp = (now.start, now.end, now.since, now.over)
            progress.noise_at_change = self.noise(progress).scale
        progress.batch, progress.base = batch, self.base

    def noise(self, progress: TrainingProgress) -> Noise:
        """What the noise scale is computed from; asked for in every step."""
        if self._noise[0] is not progress.noise:
            self._noise = (progress.noise, Noise(*progress.noise))
        return self._noise[1]

    def dense_until(self, progress: TrainingProgress, batch: int) -> int:
        """The cursor up to which noise is measured often, from where the training is; see noise_scale.py."""
        missing = 0 if self.noise(progress).known else noise_scale.FEWEST * noise_scale.EVERY
        return progress.cursor + missing * batch

    def measured(
        self, progress: TrainingProgress, small: float, large: float, sizes: Sequence[int], total: int
    ) -> None:
        """Take one measurement of the noise scale; see noise_scale.py. The same on every rank."""
        now = self.noise(progress).updated(small, large, sizes, total)
        progress.noise = (now.trace, now.signal, now.weight)

    def rate(self, progress: TrainingProgress) -> Rate:
        """The rate for the step after `progress`."""
        return self._rate_at(progress, Ramp(*progress.ramp).at(progress.samples))

    def target_rate(self, progress: TrainingProgress) -> Rate:
        """The rate once a ramp has ended."""
        return self._rate_at(progress, Ramp(*progress.ramp).end)

    def _rate_at(self, progress: TrainingProgress, batch: float) -> Rate:
        # A measured scale fluctuates. Rules that are capped by it look once, at a change; the gain follows it.
        scale = self.noise(progress).scale if self.rule == "adascale" else progress.noise_at_change
        key = (batch, scale)
        if self._known is None or self._known[0] != key:
            self._known = (key, rate(self.rule, batch or self.base, self.base, scale))
        return self._known[1]

    def applied(self, progress: TrainingProgress) -> AbstractContextManager[None]:
        """The optimizers' groups changed for one step."""
        current = self.rate(progress)
        return nullcontext() if current.changes_nothing else self._changed(current)

    @contextmanager
    def _changed(self, current: Rate) -> Iterator[None]:
        undo: list[tuple[dict[str, Any], dict[str, Any]]] = []
        try:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    changed = current.group(group)
                    undo.append((group, {name: group[name] for name in changed}))
                    group.update(changed)
            yield
        finally:
            for group, before in undo:
                group.update(before)

    def describe(
        self, batches: tuple[int, int], gpus: int, lrs: tuple[float, float], pause_s: float, progress: TrainingProgress
    ) -> str:
        """One line for the job's log; pairs are old and new."""
        batch = " -> ".join(str(entry) for entry in dict.fromkeys(batches))
        lr = " -> ".join(dict.fromkeys(f"{entry:.3g}" for entry in lrs))
        scale = self.noise(progress).scale
        measured = f", noise scale {scale:.0f}" if scale else ""
        return f"batch {batch} on {gpus} GPUs, lr {lr} ({self.rule}){measured}, pause {pause_s:.2f} s"
