"""What each address of the API answers: a record or a message by the route's name. The handlers give it, the OpenAPI
document describes it, the command line reads it."""

from __future__ import annotations

from typing import Any

from slurm_elastic.protocol import messages

ANSWERS: dict[str, type[Any]] = {"register": messages.Grant, "directive": messages.Directive}
