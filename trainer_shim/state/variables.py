"""Variables of a script that survive as the rest of the state does: by their names, in globals() or in vars(object).

Between hold() and the next one the state is what they were then, whatever the script assigns meanwhile. Limit: values
are copied, tensors into host memory, so they are for counters and best results and not for weights.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from slurm_elastic.protocol.errors import TrainingError

from .packed_tensors import copied


class Variables:
    """See the module. What State.keep() takes."""

    def __init__(self, within: Any, names: Sequence[str]) -> None:
        """Raises TrainingError for names that have no value yet."""
        if not isinstance(within, MutableMapping):
            raise TrainingError(
                f"job.keep() was given a {type(within).__name__}; accepted: globals() or vars(object) and names in it, "
                "and name=object"
            )
        for name in names:
            if name not in within:
                raise TrainingError(f"job.keep(..., '{name}'): no variable of that name has a value yet")
        self._within, self._names = within, tuple(names)
        self._held: dict[str, Any] | None = None

    def hold(self) -> None:
        """An iteration has ended: what the variables are now belongs to it."""
        self._held = self._now()

    def _now(self) -> dict[str, Any]:
        now: dict[str, Any] = copied({name: self._within[name] for name in self._names})
        return now

    def state_dict(self) -> dict[str, Any]:
        return dict(self._now() if self._held is None else self._held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Assign the values. Raises KeyError where there are others than this script keeps."""
        values: dict[str, Any] = copied({name: state[name] for name in self._names})
        self._within.update(values)
        if self._held is not None:
            self._held = self._now()
