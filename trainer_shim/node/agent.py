"""One agent per node: it has imported what workers need and forks them, so that a worker starts in 0.2 s, not 5.

The agent decides nothing. It stays single-threaded until its end (forking needs that), has each worker's output kept
in a file and tells the supervisor of every exit. Without its supervisor it waits, in bounded time, for its workers to
leave; on a companion it then also cancels its own Slurm job, so that a companion never outlives its base.
"""

import contextlib
import functools
import gc
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slurm_elastic.protocol.json_lines import Message, name_of, records, texts, variables, whole
from slurm_elastic.protocol.version import build

from ..control import cuda_backend, handshake, job_key
from ..control.connection import Connection
from ..control.event_loop import Loop
from . import program, stack_dump, worker_process
from .log_keeper import LogKeeper
from .reach import SUPERVISOR, Listener, Reach

CONNECT_S = 30.0
ORPHAN_S = 30.0
LEAVE_S = 35.0
"""How long workers may take to write what they have trained once the supervisor is gone; they leave before that."""
TAIL_LINES = 20
FOLLOW_BACKLOG = 4 << 20
STACKS_S = 2.0
"""How long a worker that is asked for its stacks may take to write them."""
MOST_OF_DUMP = 1 << 20
VISIBLE = "CUDA_VISIBLE_DEVICES"
OF_AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
KFD = Path("/dev/kfd")
"""There is a GPU of AMD's."""
SOCKET_PATH = 107
"""Bytes of a Unix socket's path, at most."""


@dataclass(slots=True)
class Child:
    name: str
    pid: int
    output: int
    verdict: int
    dump: int
    """Where its stacks come from."""
    follow: bool
    sockets: str
    """A folder of the worker's in TMPDIR."""
    stacks: bytes = b""
    """Those that it was asked for last."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    partial: bytes = b""

    def close(self) -> None:
        for descriptor in (self.output, self.verdict, self.dump):
            os.close(descriptor)

    def remove_sockets(self) -> None:
        if self.sockets:
            shutil.rmtree(self.sockets, ignore_errors=True)


class Agent:
    """See the module. `arguments` is the script and its arguments, as `selastic run` was given them."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self._arguments = arguments
        self._env = env
        logs, own = Path(env["SELASTIC_JOB_DIR"], "logs"), f"agents-{env['SELASTIC_AGENT_JOB']}"
        self._logs = LogKeeper(logs, own, env.get("SELASTIC_MARK", ""))
        self._loop = Loop()
        self._logs.begin(self._loop, lambda: self._connection.send({"type": "unshared"}))
        self._children: dict[int, Child] = {}
        self._quitting = self._alone = False
        self._key = job_key.take(env)
        self._address, sock = connect(env, CONNECT_S, self._introduce)
        self._connection = Connection(self._loop, sock, self._received, self._lost, self._tell)

    def run(self) -> int:
        """Serve until told to quit, or until the supervisor is gone; the exit code is 0 in the first case."""
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGTSTP, *worker_process.NOTICES):
            self._loop.on_signal(number, functools.partial(self._notice, number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._logs.take_own_output()  # whoever started it may be killed any time, and nobody reads it then
        program.keep_in(Path(self._env["SELASTIC_JOB_DIR"], program.FOLDER))
        preimport(self._env.get("SELASTIC_PRELOAD", "").split(","))
        self._loop.run()
        self._logs.close(self._loop)
        if self._quitting:
            return 0
        if self._env.get("SELASTIC_COMPANION"):
            self._end_companion()
        return 1

    def _introduce(self, sock: socket.socket) -> None:
        address = str(sock.getsockname()[0])
        self._reach = Reach(self._loop, address)
        try:
            handshake.introduce(sock, self._key, self._hello(address, self._reach.port))
        except OSError:
            self._reach.close()
            raise

    def _hello(self, address: str, port: int) -> Message:
        return {
            "kind": "agent",
            "agent": self._env["SELASTIC_AGENT"],
            "slurm_job_id": int(self._env.get("SELASTIC_AGENT_JOB", "0")),
            "node": self._env["SELASTIC_AGENT_NODE"],
            "gpus": gpus(self._env),
            "address": address,
            "port": port,
            "build": build(),
        }

    def _received(self, connection: Connection, message: Message) -> None:
        kind = message.get("type")
        if kind == "spawn":
            self._spawn(name_of(message, "worker"), variables(message, "env"), bool(message.get("follow")))
        elif kind == "kill":
            number = whole(message, "signal", 1, signal.NSIG - 1, default=signal.SIGKILL)
            for child in self._children.values():
                if child.name == message.get("worker"):
                    kill_group(child.pid, number)
        elif kind == "follow":
            for child in self._children.values():
                child.follow = child.name == message.get("worker")
        elif kind == "stacks":
            self._ask_stacks(texts(message, "workers"))
        elif kind == "reach":
            self._reach.try_all([Listener.of(other) for other in records(message, "others")], self._reached)
        elif kind == "quit":
            self._quitting = True
            self._quit_when_empty()
            self._loop.after(5.0, self._kill_all)

    def _reached(self, problems: list[tuple[Listener, str]]) -> None:
        """The answer to `reach`: who does not answer here."""
        told = [{**asdict(other), "problem": problem} for other, problem in problems]
        self._connection.send({"type": "reached", "unreached": told})

    def _quit_when_empty(self) -> None:
        if (self._quitting or self._alone) and not self._children:
            self._loop.stop()

    def _kill_all(self) -> None:
        for child in self._children.values():
            kill_group(child.pid, signal.SIGKILL)

    def _tell(self, line: str) -> None:
        print(f"selastic: {line}", file=sys.stderr, flush=True)

    def _lost(self, connection: Connection) -> None:
        self._alone = True
        self._quit_when_empty()
        self._loop.after(LEAVE_S, self._kill_all)

    def _notice(self, number: int) -> None:
        """Slurm's SIGTERM or SIGTSTP, or a notice: the supervisor decides. The workers ignore it, so there is time
        until the SIGKILL or SIGSTOP."""
        self._connection.send({"type": "notice", "signal": number})

    # --- workers ----------------------------------------------------------------------------------------------

    def _spawn(self, name: str, env: dict[str, str], follow: bool) -> None:
        reading, writing = os.pipe()
        verdict, judge = os.pipe()
        dump, dumping = os.pipe()
        sockets = folder_for_sockets()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            self._become_worker(writing, judge, dumping, env, sockets)
        with contextlib.suppress(OSError):  # the child does the same; whoever is second fails
            os.setpgid(pid, pid)
        for descriptor in (writing, judge, dumping):
            os.close(descriptor)
        for descriptor in (reading, verdict, dump):
            os.set_blocking(descriptor, False)
        child = Child(name, pid, reading, verdict, dump, follow, sockets)
        self._children[pid] = child
        self._loop.watch(reading, lambda: self._output(child))
        self._loop.watch(dump, lambda: self._dumped(child))

    def _become_worker(self, output: int, verdict: int, dump: int, env: dict[str, str], sockets: str) -> None:
        try:
            self._loop.leave_in_child()
            self._connection.forget()
            self._logs.forget()
            self._reach.forget()
            for child in self._children.values():
                child.close()
            host, port = self._address
            if VISIBLE in env:  # else it has all of the node's, as the commands of `selastic hold`
                env.update(devices_of_worker(os.environ, env.pop(VISIBLE), env["SELASTIC_LOCAL_RANK"]))
            env["SELASTIC_CONTROL"] = f"{host}:{port}"
            worker_process.run(self._arguments, env, output, verdict, dump, sockets)
        finally:
            os._exit(70)

    def _output(self, child: Child) -> None:
        while True:
            try:
                data = os.read(child.output, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._loop.watch(child.output, None)
                return
            self._logs.write(child.name, data)
            self._lines(child, data)

    def _lines(self, child: Child, data: bytes) -> None:
        *lines, child.partial = (child.partial + data).split(b"\n")
        if len(child.partial) > 1 << 16:
            lines, child.partial = [*lines, child.partial], b""
        texts = [line.decode(errors="replace") for line in lines]
        child.tail.extend(texts)
        if child.follow and texts and self._connection.backlog() < FOLLOW_BACKLOG:
            self._connection.send({"type": "output", "worker": child.name, "text": "\n".join(texts)})

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._ended(self._children.pop(pid), status)
        self._quit_when_empty()

    def _ended(self, child: Child, status: int) -> None:
        kill_group(child.pid, signal.SIGKILL)  # data loader processes it may have left
        self._output(child)
        if child.partial:
            self._lines(child, b"\n")
        self._loop.watch(child.output, None)
        self._loop.watch(child.dump, None)
        verdict = b""
        with contextlib.suppress(BlockingIOError):
            verdict = os.read(child.verdict, 1 << 16)
        child.close()
        child.remove_sockets()
        self._logs.end_log(child.name)
        code = os.waitstatus_to_exitcode(status)
        self._connection.send(
            {
                "type": "exit",
                "worker": child.name,
                "code": max(code, 0),
                "signal": max(-code, 0),
                "raised": bool(verdict),
                "error": verdict[1:].decode(errors="replace"),
                "tail": list(child.tail),
            }
        )

    # --- where workers are --------------------------------------------------------------------------------------

    def _ask_stacks(self, workers: tuple[str, ...]) -> None:
        """Have them written to each worker's log; the supervisor gets the script's own."""
        asked = [child for child in self._children.values() if child.name in workers]
        for child in asked:
            child.stacks = b""
        problems = {child.name: stack_dump.ask(child.pid) for child in asked}

        def answer() -> None:
            for child in asked:
                frames = stack_dump.main_thread(child.stacks.decode(errors="replace"))
                problem = "" if frames else problems[child.name] or "does not answer a signal"
                told = {"worker": child.name, "frames": list(frames), "problem": problem}
                self._connection.send({"type": "stack", **told})

        self._loop.after(STACKS_S, answer)

    def _dumped(self, child: Child) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(child.dump, 1 << 16):
                child.stacks = (child.stacks + data)[:MOST_OF_DUMP]
                self._logs.write(child.name, data)
            self._loop.watch(child.dump, None)

    # --- without a supervisor ---------------------------------------------------------------------------------

    def _end_companion(self) -> None:
        """Give the companion back, unless the supervisor is still there: then this is its decision."""
        try:
            connect(self._env, float(self._env.get("SELASTIC_ORPHAN_S", ORPHAN_S)), lambda sock: sock.close())
        except OSError:
            companion = self._env["SELASTIC_AGENT_JOB"]
            try:
                subprocess.run(["scancel", companion], check=False, timeout=60)
            except OSError as error:  # a container may be without Slurm's commands
                self._tell(
                    f"companion {companion} is left to selasticd, or to its time limit: scancel: {error.strerror}"
                )


def preimport(names: Sequence[str]) -> None:
    """Import what the framework and the user name. What cannot be imported fails in the script, and says why."""
    gc.disable()  # searches while importing, and one at the end, would be a quarter of the time
    for name in filter(None, names):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.freeze()  # the workers share these pages until they write to them
    gc.enable()


def connect(
    env: dict[str, str], seconds: float, introduce: Callable[[socket.socket], None]
) -> tuple[tuple[str, int], socket.socket]:
    """The supervisor's address as it could be reached, and the connection, which `introduce` has taken without OSError.

    The address that srun was started from (SLURM_LAUNCH_NODE_IPADDR) comes first: a host's name may mean nothing, or
    its loopback, on another node. Where an interface was chosen, its address is the only one. Raises OSError, which
    names the addresses, when there is no answer within `seconds`.
    """
    name, _, port = env["SELASTIC_CONTROL"].rpartition(":")
    launched_from = "" if env.get("SELASTIC_INTERFACE") else env.get("SLURM_LAUNCH_NODE_IPADDR", "")
    hosts = dict.fromkeys(host for host in (launched_from, name.strip("[]")) if host)
    deadline = time.monotonic() + seconds
    while True:
        problems = []
        for host in hosts:
            try:
                sock = socket.create_connection((host, int(port)), timeout=5)
                try:
                    introduce(sock)
                except OSError:
                    sock.close()
                    raise
                return (host, int(port)), sock
            except OSError as error:
                problems.append(f"{host} port {port} ({error.strerror or error})")
        if time.monotonic() >= deadline:
            raise OSError(", nor ".join(problems))
        time.sleep(0.2)


def names_devices(env: Mapping[str, str]) -> str:
    """The variable that counts for which GPUs are ours. Slurm may set all of them, whatever the GPUs are; AMD's runtime
    heeds its own first, and numbers anew, for the others, what that has left."""
    return next((name for name in OF_AMD if KFD.exists() and env.get(name)), VISIBLE)


def devices_of_worker(env: MutableMapping[str, str], device: str, index: str) -> dict[str, str]:
    """What tells a worker its device; nothing else in `env` does from now on. device: "": none. index: its place among
    those of `gpus`."""
    name = names_devices(env) if device else VISIBLE
    told = {name: device}
    if device and cuda_backend.devices(env) == "node":
        told = {key: env[key] for key in told if key in env} | {"LOCAL_RANK": index}
    for other in OF_AMD if KFD.exists() else ():
        env.pop(other, None)
    if name != VISIBLE:
        env.pop(VISIBLE, None)
    return told


def gpus(env: Mapping[str, str]) -> list[str]:
    """The device ids for this node's workers; "" stands for a worker without a GPU.

    Slurm, or the user, says in CUDA_VISIBLE_DEVICES which GPUs are ours, or in AMD's variables; outside Slurm every GPU
    of the machine is. SELASTIC_NPROC, when set, says how many workers there are to be; where gloo moves CUDA tensors
    they share the GPUs.
    """
    devices = env.get(names_devices(env))
    if devices is None and "SLURM_JOB_ID" not in env:
        numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
        devices = ",".join(sorted(numbers, key=lambda number: (len(number), number)))
    visible = [word for word in (devices or "").split(",") if word]
    wanted = int(env.get("SELASTIC_NPROC") or 0) or max(len(visible), 1)
    if visible and cuda_backend.chosen(env) == "gloo":
        return [visible[number % len(visible)] for number in range(wanted)]
    return visible[:wanted] if len(visible) >= wanted else [""] * wanted


def folder_for_sockets() -> str:
    """Of one worker, named as python would, in TMPDIR; in /tmp where the path of a socket would be too long there. ""
    where none can be made."""
    for place in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(place)) <= SOCKET_PATH - len("/pymp-01234567/listener-01234567"):
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix="pymp-", dir=place)
    return ""


def kill_group(pid: int, number: int) -> None:
    """Signal a worker and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def main() -> int:
    for number in worker_process.NOTICES:
        signal.signal(number, signal.SIG_IGN)  # until somebody can be told
    build()
    env = dict(os.environ)
    job_key.take(os.environ)
    env.setdefault("SELASTIC_AGENT_JOB", env.get("SLURM_JOB_ID", "0"))
    env.setdefault("SELASTIC_AGENT_NODE", env.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0])
    env.setdefault("SELASTIC_AGENT", f"{env['SELASTIC_AGENT_JOB']}.{env['SELASTIC_AGENT_NODE']}")
    try:
        agent = Agent(sys.argv[1:], env)
    except OSError as error:
        node = env["SELASTIC_AGENT_NODE"]
        print(f"selastic: {SUPERVISOR.format(node, error)}; see --interface", file=sys.stderr)
        return 1
    return agent.run()


if __name__ == "__main__":
    sys.exit(main())
