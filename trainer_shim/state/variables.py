"""Variables of a script that survive as the rest of the state does: by their names, in globals() or in vars(object);
and lists and dicts, which stay the objects that the script has.

Between hold() and the next one the state is what they were then, whatever the script assigns meanwhile. Limit: values
are copied, tensors by way of host memory, so they are for counters and best results and not for weights.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from .packed_tensors import copied

DEVICES = "(devices)"
"""Where tensors among the values were, by name, which a process that joins cannot know."""


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
        self._within, self.names = within, tuple(names)
        self._held: dict[str, Any] | None = None

    def hold(self) -> None:
        """An iteration has ended: what the variables are now belongs to it."""
        self._held = self._now()

    def _now(self) -> dict[str, Any]:
        values = {name: self._within[name] for name in self.names}
        now: dict[str, Any] = copied(values)
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        elsewhere = {name: value.device.type for name, value in tensors.items() if value.device.type != "cpu"}
        return {**now, DEVICES: elsewhere} if elsewhere else now

    def _assign(self, values: dict[str, Any]) -> None:
        self._within.update(values)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._now() if self._held is None else self._held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Assign the values. Raises KeyError where there are others than this script keeps."""
        values: dict[str, Any] = copied({name: state[name] for name in self.names})
        for name, device in state.get(DEVICES, {}).items():
            values[name] = values[name].to(device)
        self._assign(values)
        if self._held is not None:
            self._held = self._now()


class Collection(Variables):
    """A list or a dict, loaded in place."""

    def __init__(self, collection: list[Any] | dict[Any, Any]) -> None:
        super().__init__({"collection": collection}, ("collection",))
        self._collection = collection

    def _assign(self, values: dict[str, Any]) -> None:
        self._collection.clear()
        if isinstance(self._collection, dict):
            self._collection.update(values["collection"])
        else:
            self._collection.extend(values["collection"])
