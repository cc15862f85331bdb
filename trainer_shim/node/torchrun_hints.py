"""Errors of a script that is as it was under torchrun, said once more in words that say what to write instead.

Promise: one sentence that names the call and its line; nothing for any other error.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import FrameType, TracebackType

NO_GROUP = "Default process group has not been initialized"
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TASK_VARIABLES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS")
INSTEAD = {
    "DistributedDataParallel": "job.wrap(model, optimizer) or job.replicate(model) in its place",
    "DistributedSampler": "job.loader(dataset), or job.share(n), in its place",
    "init_process_group": "leave it out, the job makes the process groups",
}
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<|/slurm_elastic/trainer_shim/")
_OWN = str(Path(__file__).resolve().parents[1]) + "/"


def hint(error: BaseException) -> str:
    """The sentence; empty for an error that speaks for itself."""
    text = str(error)
    asks = error.args[0] if isinstance(error, KeyError) and error.args else ""
    if asks in VARIABLES + TASK_VARIABLES:
        launcher = "torchrun" if asks in VARIABLES else "srun"
        return (
            f"{_call(error.__traceback__)[0]} asks for {asks}, which {launcher} sets and selastic run does not; "
            "accepted: job.rank and job.world_size inside the loop, and job.device"
        )
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"{_call(error.__traceback__)[0]} ran out of the GPU's memory: a smaller world gives each rank more "
            "samples; accepted: join(micro_batch=...), or job.fit() before the loop"
        )
    if isinstance(error, ValueError) and text.startswith("Invalid rank -1"):
        instead = INSTEAD["DistributedSampler"]
        return f"{_call(error.__traceback__)[0]} needs a rank, and job.rank is -1 before the loop; accepted: {instead}"
    asked = re.search(r"environment variable (\w+) expected, but not set", text)
    if NO_GROUP not in text and not (asked and asked[1] in VARIABLES):
        return ""
    line, name = _call(error.__traceback__)
    if name == "init_process_group" or asked:
        instead = INSTEAD["init_process_group"]
        return f"{line} calls {name}() with what torchrun sets and selastic run does not; accepted: {instead}"
    instead = INSTEAD.get(name, "leave it out, or inside the loop and behind the pass `if job.world_size > 1:`")
    return (
        f"{line} calls {name}(): under selastic run there is no process group before job.next() or job.epochs(), "
        f"nor in a world of one rank, and a worker that joins would wait there alone; accepted: {instead}"
    )


def _call(traceback: TracebackType | None) -> tuple[str, str]:
    """The script's innermost line, and what it calls."""
    line, name, found = "the script", "it", False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not (_LIBRARY.search(code.co_filename) or code.co_filename.startswith(_OWN)):
            line, name, found = f"{Path(code.co_filename).name} line {traceback.tb_lineno}", "it", True
        elif found and name == "it" and code.co_name != "wrapper":
            name = _name(traceback.tb_frame)
        traceback = traceback.tb_next
    return line, name


def _name(frame: FrameType) -> str:
    """Of a function, or of the class that is made."""
    if frame.f_code.co_name == "__init__" and "self" in frame.f_locals:
        return type(frame.f_locals["self"]).__name__
    return frame.f_code.co_name
