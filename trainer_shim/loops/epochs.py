"""Passes over datasets: micro batches are handed out, and come back as losses, until a pass has been seen whole.

The half of a job's loop that a script does not see; the adapters of frameworks drive it by its parts.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from ..control.worker_client import ComingWorld
from ..data.loader import Feed, to_device
from ..data.sampling import COMPUTED_FROM, Micro, mix, seed_all
from ..training.guards.script_frames import line_under_way
from ..training.session import Session
from ..world.agreement import TallyReader
from .iterations import OwnLoop
from .leaving import on_purpose
from .once import share

MAX_FEEDS = 4
"""Datasets whose loader workers are kept."""
LEAST_WEIGHT = 1e-30
"""What a step without any weight is divided by: its gradients are 0."""
VotedStep = tuple[Micro, ComingWorld | None, TallyReader]
"""A step whose gradients are complete, and the vote that went with it."""


class EpochLoop:
    """One pass after another. One per job."""

    def __init__(self, session: Session, own_loop: OwnLoop) -> None:
        self._session = session
        self._own_loop = own_loop
        self._feeds: dict[tuple[int, str], Feed] = {}
        self._own: list[int] = []
        self._weight: float | None = None
        """Of the step under way so far, where the script gives weights."""
        self.number = 0
        """Passes begun in this epoch."""
        self.open = False
        """Whether the loop over the epochs is under way."""
        self.stopped = False
        self.micro: Micro | None = None
        """What the script is computing on."""

    def feed(self, dataset: Any, options: dict[str, Any]) -> Feed:
        """The dataset's loader, with its workers from earlier passes."""
        key = (id(dataset), repr(sorted((name, repr(value)) for name, value in options.items())))
        feed = self._feeds.get(key)
        if feed is None or feed.dataset is not dataset:
            tuning = self._session.tuning
            feed = Feed(dataset, tuning.seed, options, tuning.each, self._session.meant)
            if feed.lanes and self._session.tuning.shards:
                raise TrainingError("join(deterministic=True) needs a dataset with __len__ and __getitem__")
            while len(self._feeds) >= MAX_FEEDS:  # a new dataset for every epoch: the oldest's workers end
                del self._feeds[next(iter(self._feeds))]
            self._feeds[key] = feed
        return feed

    def close(self) -> None:
        self._feeds.clear()

    def done(self, whole: int, batch: int) -> int:
        """Batches of the pass that comes which are done already, of a whole pass's."""
        progress = self._session.state.progress
        if self.number != progress.loader:
            return whole if self.number < progress.loader else 0
        return -(-progress.cursor // batch)

    def iterate(self, feed: Feed, shuffle: bool) -> Iterator[Any]:
        """One pass: this rank's samples, micro batch by micro batch. Between two steps the world may change."""
        session = self._session
        if not self.open or session.feed is not None:
            raise TrainingError(
                "a job.loader() was iterated outside job.epochs() or inside another loader's loop; one pass follows "
                "another, and evaluation takes a DataLoader of its own, in job.once()"
            )
        ordinal = self.number
        self.number += 1
        if ordinal < session.state.progress.loader:
            session.pass_boundary.passed()
            return  # done before the restart, or before this worker joined
        if ordinal > session.state.progress.loader:
            session.state.progress.next_pass(ordinal)  # the one before was left early
        self.begin(feed, ordinal, shuffle)
        try:
            while not self.stopped:
                session.reporting.meter.asks(session.device.type == "cuda")
                got = feed.next()
                if got is None:
                    break
                yield self.there(self.hand_out(*got))  # in no local: a script may let go of them
                if self.micro is not None and self._own_loop.models:
                    micro, self.micro = self.micro, None
                    self._own_loop.batch_ended(micro)
                elif self.micro is not None:
                    raise TrainingError(
                        "job.step(loss) was not called for a batch of job.loader(); call it for each, and evaluate "
                        "with a DataLoader of your own, in job.once()"
                    )
                session.boundary()
        except GeneratorExit:
            if on_purpose():  # the loop was left early
                if self.micro is not None and self._own_loop.models:
                    self._own_loop.batch_left(self.micro)
                session.replica_check.left = line_under_way()
                session.pass_boundary.begin()
            raise
        finally:
            session.feed = self.micro = None
            self._own = []
            session.unkept.leave()
        session.state.progress.next_pass(ordinal + 1)
        session.pass_boundary.begin()

    def begin(self, feed: Feed, ordinal: int, shuffle: bool) -> None:
        """Begin a pass, or go on with it where the training is."""
        session = self._session
        progress = session.state.progress
        if progress.pass_samples not in (0, feed.samples):
            raise TrainingError(
                f"the dataset has {feed.samples} samples here and {progress.pass_samples} where the "
                "training began; every worker needs the same dataset"
            )
        if not progress.pass_samples and 0 < feed.samples <= progress.cursor:
            raise TrainingError(
                f"job.begin_at(in_epoch={progress.cursor}) is not accepted for a pass over {feed.samples} samples; "
                "accepted: fewer, or the next epoch"
            )
        if progress.pass_samples:
            session.pass_boundary.passed()
        else:  # the pass is new to all ranks
            progress.computed = feed.samples >= COMPUTED_FROM
            if feed.left_out and progress.samples == 0:
                session.log(
                    f"slice={session.tuning.each}: of each pass over {feed.samples + feed.left_out} samples the last "
                    f"{feed.left_out} of its order are left out, which fill no slice"
                )
            if feed.lanes:
                progress.unread = (share(session, feed.lanes), 0, ())
        session.pass_boundary.end()
        progress.pass_samples = feed.samples
        session.boundary()  # a loop that was left early leaves a step's tally unread
        progress = session.state.progress
        now = progress.cursor, session.slicing(), progress.unread, progress.computed
        feed.start(progress.epoch, ordinal, shuffle, *now)
        session.feed = feed
        session.reporting.meter.resume()

    def hand_out(self, micro: Micro, samples: Any) -> Any:
        """The samples on this worker's device, with the generators where this micro batch of this step has them."""
        session = self._session
        self.micro, session.samples = micro, len(micro.indices)
        session.model().expect(micro)
        if self._own_loop.models:
            self._own_loop.batch_begins(micro)
        value = samples if session.device.type == "cpu" else to_device(samples, session.device)
        who = (micro.shard, micro.place) if micro.shard >= 0 else (session.world().replica, micro.index)
        if session.rehearsed is not None and session.rehearsed.draws_by_row(micro.indices):
            who = -1, 0
        seed_all(mix(session.tuning.seed, session.state.progress.step, *who, 1))
        return value

    def there(self, samples: Any) -> Any:
        """Samples that are on this worker's device, or on their way: the host's part of a copy is a wait, too."""
        self._session.reporting.meter.got()
        return samples

    def learn(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> VotedStep | None:
        """Backward on the mean loss of what was handed out, with its weight in the global batch: its samples, or what
        the script gives.

        Not None with a step's last micro batch: then the optimizers may step.
        """
        micro, session = self.micro, self._session
        if micro is None:
            raise TrainingError(
                "job.step() was called without a batch of job.loader(); call it once for each batch, which no loader "
                "of the script's own can give"
            )
        led = isinstance(loss, torch.Tensor) and (loss.requires_grad or session.model().void)
        if not led or loss.dim() != 0:
            raise TrainingError("job.step(loss) needs a scalar tensor that the model's parameters lead to: a mean loss")
        weight = self._weighed(micro, loss, weight)
        scale = self.scale(micro, weight)
        if scale != 1:  # with equal shares it is 1, and a product in every step's graph for nothing
            loss = loss * scale
        return self.backward(micro, session.optimizers().scale(loss), weight)

    def scale(self, micro: Micro, weight: float | None = None) -> float:
        """The factor for the mean loss of a micro batch."""
        own = micro.weight if weight is None else weight / self._session.state.progress.per_sample
        return self._session.model().scale(own, micro)

    def _weighed(self, micro: Micro, loss: torch.Tensor, given: float | torch.Tensor | None) -> float | None:
        """The weight of a micro batch's loss, as the script has given it."""
        if given is None:
            return None
        if not self._session.model().reduction.averages:
            raise TrainingError(
                f"job.step(weight=...) does not go with join(combine={self._session.tuning.combine!r}); accepted: "
                "job.step(loss), or combine='mean'"
            )
        weight = float(given)
        if not 0 <= weight < math.inf:
            raise TrainingError(f"job.step(weight={weight}) is not accepted; accepted: a number, from 0")
        if weight == 0 and not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"job.step(loss, weight=0) was given a loss of {loss.item()}, for the mean over nothing is no number; "
                "accepted: the sum, divided by max(weight, 1)"
            )
        return weight if micro.weight else 0.0

    def backward(self, micro: Micro, loss: torch.Tensor, weight: float | None = None) -> VotedStep | None:
        """Backward on a loss that carries its weight; with a step's last micro batch, its vote. weight: what the script
        gave; then all ranks do so in each micro batch, and the gradients are divided by the sum of all at the end."""
        session, parallel = self._session, self._session.model()
        session.look_at_loss(loss)
        if micro.index == 0:
            self._weight = None
        if (weight is None) != (self._weight is None) and micro.index:
            raise TrainingError("job.step(weight=...) was given for some micro batches of a step; give it for each")
        self._weight = None if weight is None else (self._weight or 0.0) + weight
        self.micro = None
        self._own += micro.own
        coming, vote = None, None
        if micro.last and not parallel.void:  # else it fell in the forward pass: this is the old world by now
            coming, vote = session.vote()
            if self._weight is not None:
                vote = dataclasses.replace(vote, weight=self._weight)
            session.record(micro.total, self._own)
            self._own = []
        try:
            reader = parallel.backward(loss, vote)
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            raise TrainingError(
                "backward() had run on this loss already; job.step(loss) runs it, with the loss's share of the batch"
            ) from None
        if parallel.void:
            self._own = []
        if reader is None:
            return None
        if micro.measured:
            session.measure(micro)
        if self._weight is not None:
            said = parallel.weight_of(reader) / session.world().unit
            total = said.clamp(min=LEAST_WEIGHT) if isinstance(said, torch.Tensor) else max(said, LEAST_WEIGHT)
            parallel.scale_gradients(micro.total * session.state.progress.per_sample / total)
        return micro, coming, reader
