"""Carries a machine's actions out and brings events to it: agents, Slurm, selasticd, the job directory. One thread.

It lives on the batch host, inside the batch script, and ends with the job. Only this, the control server's port and
what is in the job directory are its own; everything else can be seen from Slurm. A framework derives its own driver
where its machine has actions, or its agents messages, of their own.
"""

import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from slurm_elastic.protocol import codec
from slurm_elastic.protocol.json_lines import Malformed, Message, name_of, records, text, texts, whole
from slurm_elastic.protocol.messages import Happening
from slurm_elastic.protocol.version import build, version

from ..control import job_key
from ..control.background_writer import BackgroundWriter
from ..control.event_loop import Children, Loop
from ..control.server import ControlServer
from ..node.reach import Listener
from ..node.worker_process import NOTICES
from . import job_dir
from .daemon_client import Connect
from .launchers import Options, StartLauncher
from .lease import RENEW_S, Lease
from .pieces import actions, events
from .pieces.machine import Machine
from .pieces.table import NodeKey

STDOUT, STDERR = 1, 2
GOODBYE_S = 8.0
NOTICE = events.JobTerminating(60.0, stop=False)
"""What SIGUSR1 and SIGUSR2 say, whether they come to the batch script or to the steps (--signal without B:)."""
LAST_LINES_S = 3.0
"""How long the end of a job waits for what is still to be written."""


class Driver:
    """`run` returns the exit code of the job."""

    def __init__(
        self,
        options: Options,
        machine: Machine[Any],
        launcher: StartLauncher,
        connect: Connect | None,
        lease: Lease | None = None,
    ) -> None:
        """lease: on the job directory; None where nobody else can have it."""
        self._options, self._machine, self._lease = options, machine, lease
        self._loop = Loop()
        self._key = job_key.make()
        self._disk, self._output = BackgroundWriter(), BackgroundWriter()
        self._children = Children(self._loop, self._disk)
        self._server = ControlServer(
            self._loop, self._key, options.listen, self._hello, self._message, self._connection_lost, self._print
        )
        env = {
            **options.env,
            "SELASTIC_CONTROL": f"{options.host}:{self._server.port}",
            job_key.VARIABLE: self._key,
            "SELASTIC_LISTEN": options.listen or (options.host if "SELASTIC_INTERFACE" in options.env else ""),
            "SELASTIC_JOB_DIR": str(options.job_dir),
            "SELASTIC_NPROC": str(options.nproc or ""),
        }
        self._launcher = launcher(self._loop, self._children, dataclasses.replace(options, env=env), self._event)
        self._daemon = (
            connect(
                lambda resize: self._loop.call(lambda: self._event(events.ResizeCame(resize))),
                self._print,
                lambda grant: self._loop.call(lambda: self._event(events.Registered(grant))),
                lambda seconds: self._loop.call(lambda: self._event(events.Silent(seconds))),
            )
            if connect is not None
            else None
        )
        self._agents: dict[str, NodeKey] = {}
        self._code: int | None = None
        self._told_unshared = False
        self._armed: list[float] = []
        """When the loop wakes for the machine's timers, the next time last."""

    def run(self) -> int:
        self._loop.on_signal(signal.SIGTERM, self._terminated)
        self._loop.on_signal(signal.SIGINT, lambda: self._terminated(130))
        for number in NOTICES:
            self._loop.on_signal(number, partial(self._noticed, number))
        self._perform(self._machine.start(time.monotonic()))
        self._wait_to_renew()
        self._loop.run()
        if self._daemon is not None and not self._daemon.close():
            self._print("selasticd did not take the last messages")
        self._server.close()
        if self._lease is not None:
            self._disk.do(self._lease.give_back, lambda error: None, 0.0)
        self._disk.close(LAST_LINES_S)
        self._output.close(LAST_LINES_S)
        return 1 if self._code is None else self._code

    def _wait_to_renew(self) -> None:
        self._loop.after(RENEW_S, self._renew)

    def _renew(self) -> None:
        """A disk that is slow, or fails, ends nothing: others only see that the lease is silent."""

        def renew() -> None:
            ours = self._lease is None or self._lease.renew()
            self._loop.call(self._wait_to_renew if ours else lambda: self._event(events.DirectoryTaken()))

        self._disk.do(renew, lambda error: self._loop.call(self._wait_to_renew), 0.0)

    # --- events -----------------------------------------------------------------------------------------------

    def _terminated(self, code: int = 143) -> None:
        self._event(events.JobTerminating(self._machine.context.limits.end_s, stop=True, code=code))

    def _noticed(self, number: int) -> None:
        self._event(NOTICE)

    def _event(self, event: events.Event) -> None:
        self._perform(self._machine.handle(event, time.monotonic()))

    def _hello(self, kind: str, name: str, message: Message) -> None:
        if kind != "agent":
            return
        try:
            key = (whole(message, "slurm_job_id"), name_of(message, "node"))
            gpus = texts(message, "gpus")
            listens = text(message, "address", ""), whole(message, "port", 0, 65535, default=0)
            its = text(message, "build", "unknown")
        except Malformed:
            self._server.send(kind, name, {"type": "quit"})
            raise
        self._agents[name] = key
        self._event(events.AgentUp(key, gpus, listens, its if its != build() else ""))

    def _message(self, kind: str, name: str, message: Message) -> None:
        """Take a message of an agent. A framework reads the other kinds of messages itself."""
        what, key = message.get("type"), self._agents.get(name) if kind == "agent" else None
        if key is None:
            return
        if what == "output":
            self._write(STDOUT, text(message, "text"))
        elif what == "reached":
            told = [(Listener.of(one), text(one, "problem")) for one in records(message, "unreached")]
            self._event(events.ReachTried(key, tuple(told)))
        elif what == "unshared" and not self._told_unshared:
            self._told_unshared = True  # the first node is enough to see it
            self._print(
                f"the job directory {self._options.job_dir} on {key[1]} is not the one on {socket.gethostname()}: "
                "logs, and a checkpoint's parts, stay there; accepted: --job-dir on a file system that all nodes share"
            )
        elif what == "notice":
            number = message.get("signal")
            event = (events.NodeSuspending if number == signal.SIGTSTP else events.NodeTerminating)(key)
            self._event(NOTICE if number in NOTICES else event)
            if number == signal.SIGTERM and key == self._machine.context.batch_host:
                self._launcher.if_over(self._terminated)

    def _connection_lost(self, kind: str, name: str) -> None:
        if (key := self._agents.pop(name, None)) is not None:
            self._event(events.AgentLost(key))

    # --- actions ----------------------------------------------------------------------------------------------

    def _perform(self, actions: list[actions.Action]) -> None:
        for action in actions:
            self.PERFORM[type(action)](self, action)
        due = self._machine.deadline()
        if due is not None and (not self._armed or due < self._armed[-1]):
            self._armed.append(due)
            self._loop.after(due - time.monotonic(), self._tick)

    def _tick(self) -> None:
        self._armed.pop()
        self._perform(self._machine.tick(time.monotonic()))

    def _to_agent(self, key: NodeKey, message: Message) -> None:
        self._server.send("agent", f"{key[0]}.{key[1]}", message)

    def _retain(self, action: actions.RetainJobs) -> None:
        self._launcher.retain(action.slurm_job_ids)
        folder = self._options.job_dir / "logs"
        self._disk.do(lambda: job_dir.put_together(folder, action.slurm_job_ids), lambda error: None, 0.0)

    def _update_registration(self, action: actions.UpdateRegistration) -> None:
        if self._daemon is not None:
            options, known = self._options, action.registration
            known = dataclasses.replace(known, program=known.program or program(options.command), release=version())
            self._daemon.update_registration(dataclasses.replace(known, request=options.request))

    def _tell(self, action: actions.Tell) -> None:
        if self._daemon is not None:
            said = action.said
            if isinstance(said, Happening):
                said = dataclasses.replace(said, at=time.time(), detail=codec.printable(said.detail))
            self._daemon.tell(said)

    def _print(self, line: str) -> None:
        """Print a line for people; from any thread."""
        self._write(STDERR, f"selastic: {line}")

    def _write(self, output: int, line: str) -> None:
        self._output.append(output, f"{line}\n".encode(sys.stdout.encoding, errors="replace"))

    def _start_over(self, action: actions.StartOver) -> None:
        """As after any kill: workers write what they have trained, and the parent starts another supervisor."""
        self._print(f"{action.why}; starting over with it")
        self._output.close(LAST_LINES_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self, action: actions.Exit) -> None:
        self._code = action.code
        self._launcher.close(self._wait_for_steps)
        self._loop.after(GOODBYE_S, self._waited_enough)

    def _waited_enough(self) -> None:
        if not self._launcher.swept:
            self._print(
                "Slurm did not take every companion back in time; selasticd, or its own agents, end what is left"
            )
        self._loop.stop()

    def _wait_for_steps(self) -> None:
        """Agents that were told to quit take their srun with them; those that do not are left to Slurm."""
        if self._children.running():
            self._loop.after(0.05, self._wait_for_steps)
        else:
            self._loop.stop()

    PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        actions.LaunchAgents: lambda self, action: self._launcher.launch(action.piece, action.number),
        actions.DetachAgents: lambda self, action: self._launcher.detach(action.number),
        actions.TryReach: lambda self, action: self._to_agent(
            action.agent, {"type": "reach", "others": [dataclasses.asdict(other) for other in action.others]}
        ),
        actions.QuitAgent: lambda self, action: self._to_agent(action.agent, {"type": "quit"}),
        actions.SubmitCompanion: lambda self, action: self._launcher.submit(
            action.resize_id, action.index, action.shape, action.wait_s
        ),
        actions.DropCompanions: lambda self, action: self._launcher.drop(action.resize_id),
        actions.CancelCompanion: lambda self, action: self._launcher.cancel(action.slurm_job_id),
        actions.RetainJobs: _retain,
        actions.UpdateRegistration: _update_registration,
        actions.Tell: _tell,
        actions.Print: lambda self, action: self._print(action.text),
        actions.StartOver: _start_over,
        actions.Exit: lambda self, action: self._exit(action),
    }
    """What is done about each kind of action."""


def program(command: Sequence[str]) -> str:
    """The script and its arguments as a message may hold them: the same in every locale."""
    return codec.printable(os.fsencode(" ".join(command)).decode(errors="replace")[:1000])
