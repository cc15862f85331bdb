"""The supervisor of one training: what its driver does beside holding nodes. It speaks with workers."""

import shlex
import signal
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.json_lines import Message, text, texts, whole

from ..allocation import job_dir
from ..allocation.driver import Driver
from ..allocation.pieces.actions import Exit
from ..control.worker_client import EXIT_LOST
from .state_machine import actions, events
from .state_machine.job_end import UNSAVED_CODE

LATE_EXIT_S = 1.0
RECORD_S = 1.0
"""How long a new world waits for its generation to be on disk; a disk that is slower gets it later."""


class Supervisor(Driver):
    """`run` returns the exit code of the job."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._exits: dict[str, events.WorkerExit] = {}

    # --- events -----------------------------------------------------------------------------------------------

    def _message(self, kind: str, name: str, message: Message) -> None:
        if kind == "worker":
            self._event(events.WorkerMessage(name, message))
        elif message.get("type") == "exit":
            self._worker_ended(message)
        elif message.get("type") == "stack":
            seen = texts(message, "frames"), text(message, "problem", "")
            self._event(events.StackSeen(text(message, "worker"), *seen))
        else:
            super()._message(kind, name, message)

    def _connection_lost(self, kind: str, name: str) -> None:
        if kind == "agent":
            super()._connection_lost(kind, name)
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

    def _spawn(self, action: actions.Spawn) -> None:
        context = self._machine.context
        env = {
            "SELASTIC_WORKER": action.worker,
            "SELASTIC_LOCAL_RANK": str(action.index),
            "SELASTIC_MAIN": "1" if action.follow else "",
            "SELASTIC_JOB_DIR": str(self._options.job_dir),
            "SELASTIC_BATCH": str(self._options.batch or ""),
            "SELASTIC_AUDIT": self._options.audit,
            "SELASTIC_COMING": "{},{}".format(*context.coming_size()),
            "CUDA_VISIBLE_DEVICES": context.nodes.rows[action.agent].gpus[action.index],
        }
        self._to_agent(action.agent, {"type": "spawn", "worker": action.worker, "env": env, "follow": action.follow})

    def _record_generation(self, action: actions.RecordGeneration) -> None:
        place, number = self._options.job_dir, action.generation
        run = job_dir.Run(self._options.command, self._options.cluster, number, self._options.submitted)

        def failed(error: OSError) -> None:
            self._print(f"generation {number} could not be recorded in {place}: {error}")

        self._disk.do(lambda: job_dir.write(place, run), failed, RECORD_S)

    def _forward_report(self, action: actions.ForwardReport) -> None:
        if self._daemon is None:
            return
        try:
            self._daemon.report(
                codec.decode(messages.Report, {**action.report, "gpus": action.gpus, "nodes": action.nodes})
            )
        except ElasticError as error:
            self._print(f"a report was left out: {error}")

    def _exit(self, action: Exit) -> None:
        context = self._machine.context
        if action.code not in (0, UNSAVED_CODE, EXIT_LOST) and context.saved_step is not None:
            place = shlex.quote(str(self._options.job_dir))
            self._print(f"in a new job, the same command with --job-dir {place} goes on from {context.origin()}")
        super()._exit(action)

    PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **Driver.PERFORM,
        actions.Spawn: _spawn,
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
        actions.RecordGeneration: _record_generation,
        actions.ForwardReport: _forward_report,
    }
