"""How a script leaves a loop over a generator of the job: on purpose, or by an error that is on its way out.

Python closes the generator alike for both (GeneratorExit), but not from the same instruction: `break` and `return` drop
the loop's iterator by one of its own, an error drops it from wherever it was raised. So code that waits for the other
ranks runs after `break` only. Limit: a generator that a script holds in a variable of a function is dropped with the
function's, and counts as left by an error; Job.close() tells then.
"""

import dis
import inspect
import sys
from types import FrameType

DROPPED = {dis.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in dis.opmap}


def on_purpose() -> bool:
    """In a generator that gets GeneratorExit: whether its loop was left by `break` or `return`. Generators around it,
    such as a progress bar's, are looked through."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_code[frame.f_lasti] in DROPPED:
            return True
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        frame = frame.f_back
    return False


def failed() -> bool:
    """Whether an error has ended the script."""
    return getattr(sys, "last_type", None) is not None
