"""`selastic run`: start a training script on everything the job holds, and keep it running through every resize.

Works inside a Slurm batch job and, without Slurm, on one machine. `--dry-run` only shows what would be started.
"""

import argparse
import contextlib
import errno
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slurm_elastic.protocol import own_files, request
from slurm_elastic.protocol.errors import ConfigError, ElasticError, RequestError

from ..allocation import commands, job_dir, launchers
from ..allocation import start as allocation
from ..allocation.daemon_client import Connect
from ..allocation.parent import Parent
from ..allocation.pieces.machine import Machine
from ..allocation.start import Start
from ..control import copies, cuda_backend
from .driver import Supervisor
from .state_machine.context import CHECKPOINT_S, RunLimits, SupervisorContext
from .state_machine.parts import PARTS

EPILOG = """The script is run by the python that runs selastic, or by --python, with its arguments: once per GPU, or
--nproc times.
SIGTERM and Ctrl-C: a checkpoint is written, then the run ends. SIGUSR1 and SIGUSR2 (#SBATCH --signal=B:USR1@120 with
`exec selastic run ...` as the script's last line, or --signal=USR1@120): a checkpoint is written and the training goes
on until Slurm ends it. The same command with the same job directory goes on from the newest checkpoint."""

PREIMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "slurm_elastic.trainer_shim.job",
    "slurm_elastic.trainer_shim.parallel.fsdp",
)
"""By the agents, for all workers."""
RUN = "SELASTIC_RUN"
"""Without Slurm: which run this is, for the supervisors that follow one that was killed."""
COPIES = "accepted: selastic run alone, which starts a worker per GPU on all nodes itself"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--batch", type=_positive, default=0, metavar="N", help="global batch to start with")
    parser.add_argument(
        "--elastic", default="", metavar="REQUEST", help="elastic request, instead of the job's comment"
    )
    parser.add_argument(
        "--nproc",
        type=_positive,
        default=0,
        metavar="N",
        help="workers per node, without GPUs or sharing them (SELASTIC_CUDA_BACKEND)",
    )
    parser.add_argument(
        "--interface",
        default="",
        metavar="NAME",
        help="network between the nodes, for example ib0 (SELASTIC_INTERFACE)",
    )
    parser.add_argument("--job-dir", metavar="DIR", help="shared directory for checkpoints and logs")
    parser.add_argument("--audit", metavar="DIR", help="write down every sample trained on, for a check afterwards")
    parser.add_argument(
        "--checkpoint-every",
        type=_positive,
        metavar="SECONDS",
        help="longest time without a checkpoint (default: by what one costs and how often nodes of the partition are "
        "lost, 60 to 3600; 600 while that is not known)",
    )
    parser.add_argument(
        "--hang-after",
        type=_positive,
        default=300,
        metavar="SECONDS",
        help="shortest time without a step after which it is said where every rank is",
    )
    parser.add_argument(
        "--hang-end",
        type=_positive,
        default=0,
        metavar="SECONDS",
        help="time without a step after which the workers are ended and start again from the last state; not before it "
        "is said where they are, and three times a day at most (default: never)",
    )
    parser.add_argument(
        "--preload",
        default="",
        metavar="MODULE,...",
        help="modules that the script imports and that are slow to import: done once per node, not once per GPU",
    )
    parser.add_argument(
        "--python",
        type=_words,
        default=(),
        metavar="COMMAND",
        help="what starts Python on the nodes, as in a container: 'apptainer exec --nv image.sif python3'",
    )
    parser.add_argument(
        "--srun-options",
        type=_words,
        default=(),
        metavar="OPTIONS",
        help="further options of the srun that starts workers: --srun-options=--container-image=image.sqsh",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be started, and start nothing")
    parser.add_argument("--no-daemon", action="store_true", help="do not talk to selasticd")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name, as with python -m")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(args: argparse.Namespace) -> int:
    """Run to the end; the exit code is the training's."""
    if why := copies.refusal(os.environ, "selastic run", COPIES):
        if not copies.is_first(os.environ):  # said once
            return 2
        raise ConfigError(why)
    if args.dry_run:
        return run_here(args)
    os.environ.setdefault(RUN, secrets.token_hex(8))
    again = [sys.executable, *sys.orig_argv[1:]]
    if "SLURM_JOB_ID" not in os.environ and not args.job_dir:  # else it would be another one each time
        args.job_dir = str(job_dir.choose(os.environ, _command(args), None))
        script = len(again) - 1 - len(args.arguments)
        again[script:script] = ["--job-dir", args.job_dir]
    return Parent().run(lambda: run_here(args), again)


def run_here(args: argparse.Namespace, more: Mapping[str, str] | None = None, connect: Connect | None = None) -> int:
    """more: variables of the workers. connect: what stands for selasticd in a rehearsal."""
    env = dict(os.environ)
    start = allocation.find(env, _command(args), args.job_dir, args.nproc, args.interface)
    comment = request.find(start.jobs[0].comment) if start.jobs else None
    asked = elastic_request(args.elastic, comment, env.get("SELASTIC_REQUEST", ""))
    if args.srun_options and not start.jobs:
        raise ConfigError(f"--srun-options {shlex.join(args.srun_options)} is for jobs of Slurm; this is none")
    options = replace(
        start.options,
        env={
            **compiling(start.options.job_dir),
            **start.options.env,
            "SELASTIC_PRELOAD": ",".join([*PREIMPORTED, _modules(args.preload)]),
            **worker_env(asked),
            **(more or {}),
        },
        batch=args.batch,
        request="" if asked == comment else asked,  # the daemon reads the comment itself
        audit=str(Path(args.audit).resolve()) if args.audit else "",
        python=args.python,
        srun=args.srun_options,
    )
    start = replace(start, options=options)
    if (parts := cuda_backend.parts_of_gpus(env)) and not env.get(cuda_backend.NAME):
        said = (
            f"CUDA tensors travel by gloo, as this job holds parts of GPUs ({parts}) and NCCL takes no two of one GPU"
        )
        print(f"selastic: {said}; {cuda_backend.NAME}=nccl says otherwise", file=sys.stderr)
    if args.dry_run:
        print(plan(start))
        return 0
    return _train(args, start, connect)


def elastic_request(option: str, comment: str | None, from_plugin: str) -> str:
    """The request that counts: the option's, else the comment's, else the one that the SPANK plugin left behind.

    Raises RequestError for an option that cannot be read. A malformed one from elsewhere is passed on to the daemon,
    which reports why the job is not managed: it runs on as an ordinary one.
    """
    if option and not request.parse(option).max_batch:
        raise RequestError(f"--elastic {option} has no batch=; accepted with selastic run: gpus=MIN-MAX,batch=MIN-MAX")
    return option or comment or from_plugin


def worker_env(asked: str) -> dict[str, str]:
    """What join() needs from the request: the learning-rate rule for its lr="auto", how gradients are combined, and the
    GPUs of a replica."""
    if not asked:
        return {}
    try:
        parsed = request.parse(asked)
    except RequestError:
        return {}
    sizes = {"SELASTIC_GROUP": str(parsed.group), "SELASTIC_SLICE": str(parsed.slice)}
    combine = {} if parsed.combine == "mean" else {"SELASTIC_COMBINE": parsed.combine}
    return {**sizes, **combine, **({} if parsed.lr == "auto" else {"SELASTIC_LR": parsed.lr})}


def compiling(place: Path) -> dict[str, str]:
    """One cache of what torch.compile makes, for all nodes of a job and all its runs. What the user has set counts."""
    folder = place / "compiled"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def plan(start: Start) -> str:
    """What would be started, as text: a command per piece, then rank by rank."""
    options, jobs, pieces = start.options, start.jobs, start.pieces
    lines = [f"job directory: {options.job_dir}"]
    for piece in pieces:
        words = commands.agent_command(options.command, options.python)
        if jobs:
            job = next(job for job in jobs if job.job_id == piece.slurm_job_id)
            words = commands.srun(piece, job, words, options.srun)
        lines.append(shlex.join(words))
    slots = [(piece, node, gpu) for piece in pieces for node in piece.nodes for gpu in range(piece.gpus_per_node)]
    for rank, (piece, node, gpu) in enumerate(slots):
        lines.append(f"rank {rank}: {node} gpu {gpu} ({piece.kind} {piece.slurm_job_id})")
    return "\n".join(lines)


def _train(args: argparse.Namespace, start: Start, connect: Connect | None) -> int:
    own_files.raise_limit()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a reader of our output that has gone away is no reason to end
    start, lease = start.take_directory()
    options, jobs = start.options, start.jobs
    try:
        Path(options.audit).mkdir(parents=True, exist_ok=True)  # "" is here
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk ends no job: its workers tell it
            wanted = "a directory that you may write to"
            raise ConfigError(
                f"--audit {options.audit} cannot be made ({error.strerror}); accepted: {wanted}"
            ) from None
    newest = job_dir.newest_step(options.job_dir)
    run = f"{options.cluster} {jobs[0].job_id}" if jobs else os.environ.get(RUN, "")
    job_dir.begin_program(options.job_dir, run, fresh=newest is None)
    earlier = job_dir.read(options.job_dir)
    if earlier is None:  # from now on the directory is this job's
        with contextlib.suppress(OSError):  # a full disk is told when there is a generation to record
            job_dir.write(options.job_dir, job_dir.Run(options.command, options.cluster, 0, options.submitted))
    context = SupervisorContext(
        start.pieces,
        batch=args.batch,
        generation=earlier.generation if earlier else 0,
        saved_step=newest,
        limits=RunLimits(
            checkpoint_s=float(args.checkpoint_every or CHECKPOINT_S),
            checkpoint_given=bool(args.checkpoint_every),
            hang_s=float(args.hang_after),
            hang_end_s=float(args.hang_end),
            end_s=launchers.end_s(options.env if jobs else None),
        ),
    )
    if connect is None and not args.no_daemon:
        connect = start.connect()
    return Supervisor(options, Machine(context, PARTS), start.launcher(), connect, lease).run()


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    rest = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    if args.module:
        return ("-m", args.script, *rest)
    if not args.python and not Path(args.script).is_file():  # else it may be where that Python is
        raise ConfigError(f"script {args.script} is not there; accepted: the path of a Python file")
    return (args.script, *rest)


def _modules(text: str) -> str:
    for name in filter(None, text.split(",")):
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"--preload {name} is not a module's name; accepted: names as in import, with commas")
    return text


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not accepted ({error}); accepted: words, as in a shell") from None


def _positive(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= request.LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is not accepted; accepted: 1 to {request.LARGEST}")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="selastic run", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except ElasticError as error:
        print(f"selastic run: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


if __name__ == "__main__":
    sys.exit(main())
