"""Real workers for the shim's tests: a fork server with torch imported, and the supervisor's side of the protocol.

The fork server is a process of its own, started once per test session: a fork costs a hundredth of an import of torch.
`Control` speaks the control protocol and records what workers say; it decides nothing by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import audited
from control_peer import KEY, challenged
from patience import Patience

from slurm_elastic.trainer_shim.control import job_key
from slurm_elastic.trainer_shim.node.agent import preimport
from slurm_elastic.trainer_shim.supervisor.cli import PREIMPORTED

BLOCKED = 9
"""A port where nobody listens."""
SCRIPT = Path(__file__).parent / "training_scripts" / "plain_train.py"
NAMESPACE = Path(__file__).resolve().parents[2] / "packaging" / "namespace"
Message = dict[str, Any]
Start = Callable[..., "Control"]


class Zygote:
    """Forks workers on request, with what agents import and more `modules`; says when they exit."""

    def __init__(self, *modules: str, **environment: str) -> None:
        environ = {**os.environ, "PYTHONPATH": str(NAMESPACE), "OMP_NUM_THREADS": "1", **environment}
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        self._changed = threading.Condition()
        self.pids: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def spawn(self, name: str, script: Path, args: list[str], environ: dict[str, str], log: Path) -> None:
        order = {"name": name, "script": str(script), "args": args, "environ": environ, "log": str(log)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def wait(self, name: str, timeout_s: float = 60) -> int:
        """The worker's exit code; negative for a signal."""
        with self._changed:
            patience = Patience(timeout_s)
            while not self._changed.wait_for(lambda: name in self.codes, 0.2):
                assert not patience.over(), f"{name} did not exit in {patience}"
            return self.codes[name]

    def kill(self, name: str, number: int = 9) -> None:
        with self._changed:
            patience = Patience(30)
            while not self._changed.wait_for(lambda: name in self.pids, 0.2):
                assert not patience.over(), f"{name} was not started in {patience}"
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself just now
            if name not in self.codes:
                os.kill(self.pids[name], number)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        Patience(30).end_of(self._process)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._changed:
                if "pid" in event:
                    self.pids[event["name"]] = event["pid"]
                else:
                    self.codes[event["name"]] = event["code"]
                self._changed.notify_all()


class Control:
    """The supervisor's end: one server, worlds by hand."""

    def __init__(self, zygote: Zygote, directory: Path, args: list[str], script: Path = SCRIPT) -> None:
        self.zygote, self.directory, self.args, self.script = zygote, directory, args, script
        self.prefix = f"{os.getpid()}-{time.monotonic_ns()}."
        self.audit = directory / "audit"
        self.hold = directory / "hold"
        self.generation = 0
        self.members: list[str] = []
        self.blocked: set[str] = set()
        """Workers that do not get through to a store."""
        self.said: list[tuple[str, Message]] = []
        self._connections: dict[str, socket.socket] = {}
        self._worlds: dict[int, list[str]] = {}
        self._changed = threading.Condition()
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    # -- workers -------------------------------------------------------------------------------------------------

    def spawn(self, *names: str, **environ: str) -> None:
        if not self.hold.exists():
            self.hold.touch()
        host, port = self._server.getsockname()
        for name in names:
            variables = {
                "SELASTIC_CONTROL": f"{host}:{port}",
                job_key.VARIABLE: KEY,
                "SELASTIC_WORKER": name,
                "SELASTIC_LOCAL_RANK": "0",
                "SELASTIC_JOB_DIR": str(self.directory / "job"),
                "SELASTIC_AUDIT": str(self.audit),
                "SELASTIC_BATCH": "",
                **environ,
            }
            log = self.directory / f"{name}.log"
            self.zygote.spawn(self.prefix + name, self.script, [*self.args, str(self.directory)], variables, log)

    def ready(self, *names: str, timeout_s: float = 60) -> None:
        for name in names:
            self.wait(lambda worker, message, name=name: worker == name and message["type"] == "ready", timeout_s)

    def world(
        self,
        *members: str,
        batch: int = 0,
        source: str = "survivor",
        timeout_s: float = 30.0,
        bound_s: float = 0.0,
        tell: bool = True,
        joiners: int | None = None,
        in_place: bool = False,
    ) -> int:
        """Announce the next world to its members and to those who leave; the generation.

        joiners: how many survivors wait for; None: for all.

        bound_s: of one communication until its first step is done; 0: the shim's own.

        in_place: the members stay in their group; without it, as 0.2.0's supervisor announces another batch.
        """
        self.generation += 1
        leavers = [name for name in self.members if name not in members] if source == "survivor" else []
        self._worlds[self.generation] = [*members, *leavers]
        if joiners is None:
            joiners = len(set(members) - set(self.members)) if source == "survivor" else 0
        for rank, name in [*enumerate(members), *((-1, leaver) for leaver in leavers)]:
            self.send(
                name,
                {
                    "type": "world",
                    "generation": self.generation,
                    "rank": rank,
                    "size": len(members),
                    "batch": batch,
                    "leave": rank < 0,
                    "source": source,
                    "joiners": joiners,
                    "timeout_s": timeout_s,
                    **({"in_place": True} if in_place else {}),
                    **({"forming_s": bound_s, "first_step_s": bound_s} if bound_s else {}),
                },
            )
        if tell:
            self.members = list(members)
        return self.generation

    def running(self, generation: int, timeout_s: float = 60) -> Message:
        return self.wait(lambda _, m: m["type"] == "running" and m["generation"] == generation, timeout_s)

    def resize(self, *members: str, batch: int = 0) -> Message:
        """Start who is missing, announce the world, and wait until it runs."""
        new = [name for name in members if name not in self._connections]
        self.spawn(*new)
        self.ready(*new)
        return self.running(self.world(*members, batch=batch))

    def rebatch(self, batch: int) -> Message:
        """Have the members take another batch where they are, and wait until they have."""
        return self.running(self.world(*self.members, batch=batch, in_place=True))

    def start(self, *members: str, batch: int = 0, source: str = "fresh") -> Message:
        self.spawn(*members)
        self.ready(*members)
        return self.running(self.world(*members, batch=batch, source=source))

    def exits(self, *names: str, timeout_s: float = 90, hold: bool = False) -> list[int]:
        """Their exit codes, when they have ended; a training with --hold-from may end from now on, unless `hold`."""
        if not hold:
            self.hold.unlink(missing_ok=True)
        return [self.zygote.wait(self.prefix + name, timeout_s) for name in names]

    def kill(self, name: str, number: int = 9) -> None:
        self.zygote.kill(self.prefix + name, number)

    # -- messages ------------------------------------------------------------------------------------------------

    def send(self, name: str, message: Message) -> None:
        with contextlib.suppress(OSError, KeyError):  # a member of a world may never have come
            self._connections[name].sendall(json.dumps(message).encode() + b"\n")

    def wait(self, wanted: Callable[[str, Message], bool], timeout_s: float = 60) -> Message:
        """The first message that is wanted, also one that came earlier."""
        patience, position = Patience(timeout_s), 0
        with self._changed:
            while True:
                for worker, message in self.said[position:]:
                    if wanted(worker, message):
                        return message
                position = len(self.said)
                self._changed.wait(0.2)
                assert not patience.over(), f"not said in {patience}\n{self.story()}"

    def all(self, kind: str) -> list[Message]:
        return [message for _, message in self.said if message["type"] == kind]

    def story(self) -> str:
        """What was said and written: for a failing test."""
        lines = [f"{worker}: {message}" for worker, message in self.said if message["type"] != "report"][-40:]
        for log in sorted(self.directory.glob("*.log")):
            lines.append(f"--- {log.name}\n{tail(log.read_text(errors='replace'))}")
        return "\n".join(lines)

    def checked(self, samples: int, epochs: int, **counts: int) -> audited.AuditResult:
        """Each sample of each epoch was trained on once; with so many worlds, steps, restarts as are given."""
        found = audited.check(self.audit, samples, epochs)
        assert found.ok and counts.items() <= dataclasses.asdict(found).items(), (found, counts, self.story())
        return found

    def drop(self) -> None:
        """The supervisor dies."""
        self._server.close()
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        """End whatever is left."""
        for name in list(self.zygote.pids):
            if name.startswith(self.prefix):
                self.zygote.kill(name)
        self.drop()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("r") as lines:
            name = challenged(connection)["worker"]
            self._connections[name] = connection
            for line in lines:
                message = json.loads(line)
                if message["type"] == "store":
                    for member in self._worlds[message["generation"]]:
                        blocked = {"port": BLOCKED} if member in self.blocked else {}
                        self.send(member, {**message, **blocked})
                if message["type"] == "running":
                    for member in self._worlds[message["generation"]]:
                        self.send(member, {"type": "dismiss", "generation": message["generation"]})
                with self._changed:
                    self.said.append((name, message))
                    self._changed.notify_all()


def tail(log: str, lines: int = 20) -> str:
    """The last lines of a worker's log, without torch's warnings: dozens of them stand after what went wrong."""
    return "\n".join([line for line in log.splitlines() if not line.startswith("[W")][-lines:])


def alone(zygote: Zygote, directory: Path, *args: str, script: Path = SCRIPT) -> dict[str, Any]:
    """The same script in one process that no supervisor knows of."""
    name = f"alone-{time.monotonic_ns()}"
    log = directory / f"{name}.log"
    zygote.spawn(name, script, ["--pace", "0", *args, "--name", name, str(directory)], {}, log)
    assert zygote.wait(name) == 0, tail(log.read_text())
    return result(directory, name)


def result(directory: Path, name: str = "final") -> dict[str, Any]:
    """What a training script has left behind."""
    import torch

    loaded: dict[str, Any] = torch.load(directory / f"{name}.pt", map_location="cpu", weights_only=False)
    return loaded


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest one between two results' parameters."""
    return max(float((one["model"][key] - other["model"][key]).abs().max()) for key in one["model"] if key != "calls")


def _zygote() -> None:
    """The fork server's main loop. Children never return from here."""
    import runpy
    import select
    import signal

    preimport([*PREIMPORTED, "torch.utils.data", *sys.argv[1:]])  # and its children collect their own garbage alone
    import torch

    torch.set_num_threads(1)
    names: dict[int, str] = {}
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w)
    pending = b""
    while True:
        readable, _, _ = select.select([0, wake_r], [], [])
        if wake_r in readable:
            os.read(wake_r, 4096)
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == 0:
                    break
                _say({"name": names.pop(pid), "code": os.waitstatus_to_exitcode(status)})
        if 0 in readable:
            data = os.read(0, 1 << 16)
            if not data:
                for pid in names:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
                os._exit(0)
            *orders, pending = (pending + data).split(b"\n")
            for line in orders:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _child(order, runpy.run_path)
                names[pid] = order["name"]
                _say({"name": order["name"], "pid": pid})


def _say(event: Message) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _child(order: Message, run_path: Callable[..., Any]) -> None:
    import atexit

    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["environ"])
        sys.argv = [order["script"], *order["args"]]
        sys.path.insert(0, str(Path(order["script"]).parent))
        run_path(order["script"], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:
        sys.last_type, sys.last_value = type(error), error  # as python does
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _zygote()
