"""Between two passes the script's own code runs. After a restart it runs again: its effects are to be there once.

Schedulers stepped by epoch, rates set by hand, counters of patience, averages of weights: a checkpoint written between
two passes holds them as they were when that code began, and the code does its work again. Where the training goes on
inside a pass, the code in front of that pass has run before: what it does to the state of a worker that begins there
(after a restart, or as a joiner) is undone. Limit: what such code does to the model itself, or to an optimizer's
averages, is neither copied nor undone.
"""

from collections.abc import Callable

from ..state.kept_parts import State
from ..state.progress import TrainingProgress
from ..world.one_rank import BeforePass


class PassBoundary:
    """See the module. One per session."""

    def __init__(self, state: State, survives: bool) -> None:
        """survives: whether anybody will ever be handed this state."""
        self._state = state
        self._survives = survives
        self._replays = False
        self._before: BeforePass | None = None

    def enter(self, progress: TrainingProgress, joins: bool, tell: Callable[[str], None]) -> None:
        """The script comes to its loop, perhaps in the middle of an epoch. joins: a world that trains already. tell:
        takes a sentence for the user."""
        self._replays = progress.loader > 0 or progress.pass_samples > 0
        self._before = BeforePass(joins and self._replays, tell)
        self.begin()

    def begin(self) -> None:
        """The script's code comes next: remember what it begins with."""
        if self._survives:
            self._state.mark()

    def passed(self) -> None:
        """A pass is left out, or gone on with in its middle: the code before it has run in an earlier process too."""
        if self._replays and self._survives:
            self._state.back_to_mark()

    def end(self) -> None:
        """The next pass has begun, or the training is over."""
        self._state.unmark()
        self._replays = False
        self.leave()

    def leave(self) -> None:
        """The script's code is over, by an error or by the next pass."""
        if self._before is not None:
            self._before.end()
            self._before = None
