"""The answer to `selastic advise`. Filled by daemon/prediction/advice.py."""

from functools import partial

from ..text.tables import digits, moment, share
from ..text.times import elapsed
from .record import Column, about, record

_short = partial(elapsed, short=True)


@record
class Choice:
    """One thing to ask for."""

    partition: str = about("partition", Column("Partition"))
    gpu_type: str = about("kind of GPU; empty: of no named type", Column("Type"))
    gpus: int = about("GPUs", Column("GPUs"))
    nodes: int = about("nodes that they lie on", Column("Nodes"))
    batch: int = about("the global batch that plans would take there, in samples", Column("Batch"))
    wait_s: float = about("in the queue before it starts", Column("Wait", form=_short))
    run_s: float = about("how long the training runs, as probably shorter as longer", Column("Run", form=_short))
    run_low_s: float = about(
        "four in five run for longer than this and shorter than the next", Column("Low", form=_short)
    )
    run_high_s: float = about("the other end", Column("High", form=_short))
    end: float = about("when it is done", Column("End", form=moment))
    cost: float = about("price of the run", Column("Cost", form=digits()))
    probability: float = about("that it is done by the deadline, within the budget", Column("P", form=share))
    basis: str = about("measured: just that was, on that kind of GPU; else model", Column("From"))
    script: tuple[str, ...] = about("the lines for the batch script")


@record
class Advice:
    """What a program is best submitted with."""

    now: float
    foretold: bool = about("whether waits are selasticd's forecast; else they are as the caller told them")
    notes: tuple[str, ...] = about("what the choices go by, in sentences")
    choices: tuple[Choice, ...] = about("the best first")
