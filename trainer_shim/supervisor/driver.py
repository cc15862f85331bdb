"""The supervisor of one job: carries the state machine's actions out and brings events to it. One thread.

It lives on the batch host, inside the batch script, and ends with the training. Only this, the control server's port
and the record in the job directory are its own; everything else can be seen from Slurm and from the checkpoints.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.json_lines import Malformed, Message
from slurm_elastic.protocol.message_fields import name_of, records, text, texts, whole
from slurm_elastic.protocol.version import build, version

from ..allocation import job_dir
from ..allocation.daemon_client import Connect
from ..allocation.launchers import Options, StartLauncher
from ..allocation.lease import RENEW_S, Lease
from ..allocation.pieces import actions as held
from ..allocation.pieces.events import (
    AgentLost,
    AgentUp,
    DirectoryTaken,
    Event,
    JobTerminating,
    NodeSuspending,
    NodeTerminating,
    ReachTried,
    Registered,
    ResizeCame,
)
from ..allocation.pieces.machine import Machine
from ..allocation.pieces.table import NodeKey
from ..control import job_key
from ..control.background_writer import BackgroundWriter
from ..control.event_loop import Children, Loop
from ..control.server import ControlServer
from ..control.worker_client import EXIT_LOST
from ..node.reach import Listener
from ..node.worker_process import NOTICES
from .state_machine import actions, events
from .state_machine.context import SupervisorContext
from .state_machine.job_end import UNSAVED_CODE

STDOUT, STDERR = 1, 2
LATE_EXIT_S = 1.0
GOODBYE_S = 8.0
RECORD_S = 1.0
"""How long a new world waits for its generation to be on disk; a disk that is slower gets it later."""
NOTICE = JobTerminating(60.0, stop=False)
"""What SIGUSR1 and SIGUSR2 say, whether they come to the batch script or to the steps (--signal without B:)."""
LAST_LINES_S = 3.0
"""How long the end of a job waits for what is still to be written."""


class Supervisor:
    """`run` returns the exit code of the job."""

    def __init__(
        self,
        options: Options,
        machine: Machine[SupervisorContext],
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
            **compiling(options.job_dir),
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
                lambda resize: self._loop.call(lambda: self._event(ResizeCame(resize))),
                self._print,
                lambda grant: self._loop.call(lambda: self._event(Registered.of(grant))),
            )
            if connect is not None
            else None
        )
        self._agents: dict[str, NodeKey] = {}
        self._exits: dict[str, events.WorkerExit] = {}
        self._code: int | None = None
        self._told_unshared = False
        self._armed: list[float] = []
        """What timers wait for, the next one last."""

    def run(self) -> int:
        self._loop.on_signal(signal.SIGTERM, self._terminated)
        self._loop.on_signal(signal.SIGINT, lambda: self._terminated(130))
        for number in NOTICES:
            self._loop.on_signal(number, lambda: self._event(NOTICE))
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
        """A disk that is slow, or fails, ends no training: others only see that the lease is silent."""

        def renew() -> None:
            ours = self._lease is None or self._lease.renew()
            self._loop.call(self._wait_to_renew if ours else lambda: self._event(DirectoryTaken()))

        self._disk.do(renew, lambda error: self._loop.call(self._wait_to_renew), 0.0)

    # --- events -----------------------------------------------------------------------------------------------

    def _terminated(self, code: int = 143) -> None:
        self._event(JobTerminating(self._machine.context.limits.end_s, stop=True, code=code))

    def _event(self, event: Event) -> None:
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
        self._event(AgentUp(key, gpus, listens, its if its != build() else ""))

    def _message(self, kind: str, name: str, message: Message) -> None:
        if kind == "worker":
            self._event(events.WorkerMessage(name, message))
        elif message.get("type") == "exit":
            self._worker_ended(message)
        elif message.get("type") == "output":
            self._write(STDOUT, text(message, "text"))
        elif message.get("type") == "reached" and name in self._agents:
            told = [(Listener.of(one), text(one, "problem")) for one in records(message, "unreached")]
            self._event(ReachTried(self._agents[name], tuple(told)))
        elif message.get("type") == "stack":
            seen = texts(message, "frames"), text(message, "problem", "")
            self._event(events.StackSeen(text(message, "worker"), *seen))
        elif message.get("type") == "unshared" and name in self._agents:
            self._unshared(self._agents[name][1])
        elif message.get("type") == "notice" and name in self._agents:
            number, key = message.get("signal"), self._agents[name]
            suspends = number == signal.SIGTSTP
            event = (NodeSuspending if suspends else NodeTerminating)(key)
            self._event(NOTICE if number in NOTICES else event)
            if number == signal.SIGTERM and key == self._machine.context.batch_host:
                self._launcher.if_over(self._terminated)

    def _unshared(self, node: str) -> None:
        """Said once: the first node is enough to see it."""
        if not self._told_unshared:
            self._told_unshared = True
            self._print(
                f"the job directory {self._options.job_dir} on {node} is not the one on {socket.gethostname()}: logs, "
                "and a checkpoint's parts, stay there; accepted: --job-dir on a file system that all nodes share"
            )

    def _connection_lost(self, kind: str, name: str) -> None:
        if kind == "agent":
            if (key := self._agents.pop(name, None)) is not None:
                self._event(AgentLost(key))
        elif (late := self._exits.pop(name, None)) is not None:
            self._event(late)
        else:
            self._event(events.WorkerLost(name))

    def _worker_ended(self, message: Message) -> None:
        """What a worker said before its end comes first, though it travels on a connection of its own."""
        name, tail = text(message, "worker"), texts(message, "tail", ())
        code, number = whole(message, "code", 0, 255, default=1), whole(message, "signal", 0, 255, default=0)
        event = events.WorkerExit(name, code, number, bool(message.get("raised")), text(message, "error"), tail)
        self._exits[name] = event
        if self._server.drain("worker", name):
            self._late_exit(name)
        else:  # a process that it has left behind may keep the connection open
            self._loop.after(LATE_EXIT_S, lambda: self._late_exit(name))

    def _late_exit(self, name: str) -> None:
        if (event := self._exits.pop(name, None)) is not None:
            self._event(event)

    # --- actions ----------------------------------------------------------------------------------------------

    def _perform(self, actions: list[held.Action]) -> None:
        for action in actions:
            _PERFORM[type(action)](self, action)
        due = self._machine.deadline()
        if due is not None and (not self._armed or due < self._armed[-1]):
            self._armed.append(due)
            self._loop.after(due - time.monotonic(), self._tick)

    def _tick(self) -> None:
        self._armed.pop()
        self._perform(self._machine.tick(time.monotonic()))

    def _spawn(self, action: actions.Spawn) -> None:
        env = {
            "SELASTIC_WORKER": action.worker,
            "SELASTIC_LOCAL_RANK": str(action.index),
            "SELASTIC_MAIN": "1" if action.follow else "",
            "SELASTIC_JOB_DIR": str(self._options.job_dir),
            "SELASTIC_BATCH": str(self._options.batch or ""),
            "SELASTIC_AUDIT": self._options.audit,
            "SELASTIC_COMING": "{},{}".format(*self._machine.context.coming_size()),
            "CUDA_VISIBLE_DEVICES": self._machine.context.nodes.rows[action.agent].gpus[action.index],
        }
        self._to_agent(action.agent, {"type": "spawn", "worker": action.worker, "env": env, "follow": action.follow})

    def _to_agent(self, key: NodeKey, message: Message) -> None:
        self._server.send("agent", f"{key[0]}.{key[1]}", message)

    def _record_generation(self, action: actions.RecordGeneration) -> None:
        place, number = self._options.job_dir, action.generation
        run = job_dir.Run(self._options.command, self._options.cluster, number, self._options.submitted)

        def failed(error: OSError) -> None:
            self._print(f"generation {number} could not be recorded in {place}: {error}")

        self._disk.do(lambda: job_dir.write(place, run), failed, RECORD_S)

    def _retain(self, action: held.RetainJobs) -> None:
        self._launcher.retain(action.slurm_job_ids)
        folder = self._options.job_dir / "logs"
        self._disk.do(lambda: job_dir.put_together(folder, action.slurm_job_ids), lambda error: None, 0.0)

    def _update_registration(self, action: held.UpdateRegistration) -> None:
        if self._daemon is not None:
            known = dataclasses.replace(
                action.registration,
                program=program(self._options.command),
                request=self._options.request,
                release=version(),
            )
            self._daemon.update_registration(known)

    def _report_phase(self, action: held.ReportPhase) -> None:
        if self._daemon is not None:
            detail = codec.printable(action.phase.detail)
            self._daemon.report_phase(dataclasses.replace(action.phase, at=time.time(), detail=detail))

    def _forward_report(self, action: actions.ForwardReport) -> None:
        if self._daemon is None:
            return
        try:
            self._daemon.report(
                codec.decode(messages.Report, {**action.report, "gpus": action.gpus, "nodes": action.nodes})
            )
        except ElasticError as error:
            self._print(f"a report was left out: {error}")

    def _print(self, line: str) -> None:
        """From any thread."""
        self._write(STDERR, f"selastic: {line}")

    def _write(self, output: int, line: str) -> None:
        self._output.append(output, f"{line}\n".encode(sys.stdout.encoding, errors="replace"))

    def _start_over(self, action: held.StartOver) -> None:
        """As after any kill: workers write what they have trained, and the parent starts another supervisor."""
        self._print(f"{action.why}; starting over with it")
        self._output.close(LAST_LINES_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _exit(self, action: held.Exit) -> None:
        self._code = action.code
        context = self._machine.context
        if action.code not in (0, UNSAVED_CODE, EXIT_LOST) and context.saved_step is not None:
            place = shlex.quote(str(self._options.job_dir))
            self._print(f"in a new job, the same command with --job-dir {place} goes on from {context.origin()}")
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


def compiling(place: Path) -> dict[str, str]:
    """One cache of what torch.compile makes, for all nodes of a job and all its runs. What the user has set counts."""
    folder = place / "compiled"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def program(command: Sequence[str]) -> str:
    """The script and its arguments as a message may hold them: the same in every locale."""
    return codec.printable(os.fsencode(" ".join(command)).decode(errors="replace")[:1000])


_PERFORM: dict[type, Callable[[Supervisor, Any], object]] = {
    held.LaunchAgents: lambda self, action: self._launcher.launch(action.piece, action.number),
    held.DetachAgents: lambda self, action: self._launcher.detach(action.number),
    held.TryReach: lambda self, action: self._to_agent(
        action.agent, {"type": "reach", "others": [dataclasses.asdict(other) for other in action.others]}
    ),
    held.QuitAgent: lambda self, action: self._to_agent(action.agent, {"type": "quit"}),
    actions.Spawn: Supervisor._spawn,
    actions.Kill: lambda self, action: self._to_agent(
        action.agent, {"type": "kill", "worker": action.worker, "signal": int(signal.SIGKILL)}
    ),
    actions.AskStacks: lambda self, action: self._to_agent(
        action.agent, {"type": "stacks", "workers": list(action.workers)}
    ),
    actions.FollowOutput: lambda self, action: self._to_agent(
        action.agent, {"type": "follow", "worker": action.worker}
    ),
    actions.Send: lambda self, action: self._server.send("worker", action.worker, action.message),
    actions.RecordGeneration: Supervisor._record_generation,
    held.SubmitCompanion: lambda self, action: self._launcher.submit(
        action.resize_id, action.index, action.shape, action.wait_s
    ),
    held.DropCompanions: lambda self, action: self._launcher.drop(action.resize_id),
    held.CancelCompanion: lambda self, action: self._launcher.cancel(action.slurm_job_id),
    held.RetainJobs: Supervisor._retain,
    held.UpdateRegistration: Supervisor._update_registration,
    held.ReportPhase: Supervisor._report_phase,
    actions.ForwardReport: Supervisor._forward_report,
    held.Print: lambda self, action: self._print(action.text),
    held.StartOver: Supervisor._start_over,
    held.Exit: Supervisor._exit,
}
