"""Carries out what `selastic hold` decides: its command and the leave command here, join commands by the agents."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from slurm_elastic.protocol.json_lines import Message, name_of, text, texts, whole

from ..allocation.driver import Driver
from ..allocation.pieces.actions import Exit, StartOver
from ..allocation.pieces.events import BaseGone
from ..control import job_key
from ..control.event_loop import Ended
from ..control.server import ControlServer
from . import joins
from .joins import CommandEnded, JoinEnded, JoinReady, LeaveEnded
from .speeds import Backlog, Figure, SendReport, follow

RUN = (sys.executable, "-m", "slurm_elastic.trainer_shim.hold.program")
TOLD_KEY, TOLD_PORT = "SELASTIC_TELL_KEY", "SELASTIC_TELL_PORT"
"""By which `selastic tell` finds us, and shows that it is of this job. It is good for that alone."""


@dataclass(frozen=True, slots=True)
class Commands:
    """What the user gave. env: of what runs here, which is the batch script's. speed, backlog: sources; "": none."""

    command: tuple[str, ...]
    leave: str
    env: Mapping[str, str]
    speed: str = ""
    backlog: str = ""


class HoldDriver(Driver):
    """`run` returns the exit code of the job's own command."""

    def __init__(self, commands: Commands, *given: Any) -> None:
        super().__init__(*given)
        self._commands, self._told_key = commands, job_key.make()
        self._told = ControlServer(
            *(self._loop, self._told_key, self._options.listen, lambda *hello: None, self._tell_came),
            *(lambda *lost: None, self._print),
        )
        self._own: subprocess.Popen[bytes] | None = None
        self._leave: subprocess.Popen[bytes] | None = None
        for where, kind in ((commands.speed, Figure), (commands.backlog, Backlog)):
            if where:
                follow(where, lambda: self._machine.context.report_every_s, partial(self._figure, kind))
        self._loop.call(self._start_command)

    # --- events -----------------------------------------------------------------------------------------------

    def _message(self, kind: str, name: str, message: Message) -> None:
        if kind == "agent" and message.get("type") == "exit":
            code, number = whole(message, "code", 0, 255, default=1), whole(message, "signal", 0, 255, default=0)
            how = f"signal {number}" if number else f"exit code {code}"
            self._event(JoinEnded(text(message, "worker"), how, texts(message, "tail", ())[-5:]))
        else:
            super()._message(kind, name, message)

    def _tell_came(self, kind: str, name: str, message: Message) -> None:
        if message.get("type") == "ready":
            self._event(JoinReady(name_of(message, "join")))
        elif message.get("type") == "figure" and isinstance(per_s := message.get("per_s"), float):
            self._figure(Figure, per_s)

    def _figure(self, kind: type[Figure] | type[Backlog], value: float) -> None:
        self._loop.call(lambda: self._event(kind(value)))

    def _noticed(self, number: int) -> None:
        super()._noticed(number)
        self._signal(self._own, number)

    # --- actions ----------------------------------------------------------------------------------------------

    def _env(self, **own: str) -> dict[str, str]:
        nodes = sum(len(piece.nodes) for piece in self._machine.context.pieces)
        given = {"SELASTIC_ADDRESS": self._options.host, "SELASTIC_NODES": str(nodes), "SELASTIC_NODE_INDEX": "0"}
        return {**given, TOLD_KEY: self._told_key, TOLD_PORT: str(self._told.port), **own}

    def _start(self, command: tuple[str, ...], ended: Callable[[Ended], None], **own: str) -> Any:
        env = {**self._commands.env, **self._env(SELASTIC_HEAD=self._options.host, **own)}
        return self._children.start([*RUN, *command], env, ended, inherit=True)

    def _start_command(self) -> None:
        def ended(how: Ended) -> None:
            if self._own is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._own.pid, signal.SIGKILL)  # what it has left in the background
            self._event(CommandEnded(how.code if how.code >= 0 else 128 - how.code))

        self._own = self._start(self._commands.command, ended)

    def _start_leave(self, action: joins.StartLeave) -> None:
        """One that is told of lost nodes runs beside all else, as long as a drain may last."""

        def ended(how: Ended) -> None:
            if how.code > 0:
                self._print(f"the leave command ended with exit code {how.code}")
            if not action.lost and self._leave is process:
                self._leave = None
                self._event(LeaveEnded())

        more = {"SELASTIC_LEAVING": ",".join(action.nodes), **({"lost": "1"} if action.lost else {})}
        process = self._start(("/bin/sh", "-c", self._commands.leave or "exit"), ended, **more)
        if action.lost:
            self._loop.after(self._machine.context.limits.drain_s, partial(self._signal, process, signal.SIGKILL))
        else:
            self._leave = process

    def _kill_leave(self) -> None:
        process, self._leave = self._leave, None
        self._signal(process, signal.SIGKILL)

    def _start_join(self, action: joins.StartJoin) -> None:
        row = self._machine.context.nodes.rows[action.node]
        env = self._env(
            SELASTIC_ADDRESS=row.listens[0],
            SELASTIC_NODE=action.node[1],
            SELASTIC_JOIN=action.name,
            SELASTIC_NODE_INDEX=str(action.index),
            SELASTIC_NODES=str(action.size),
            SELASTIC_GPUS=str(sum(1 for gpu in row.gpus if gpu)),
        )
        self._to_agent(action.node, {"type": "spawn", "worker": action.name, "env": env, "follow": False})

    def _end(self, action: joins.End) -> None:
        if action.join is None:
            self._signal(self._own, signal.SIGTERM)
        else:
            kill = {"type": "kill", "worker": action.join.name, "signal": int(signal.SIGTERM)}
            self._to_agent(action.join.node, kill)

    def _report(self, action: SendReport) -> None:
        if self._daemon is not None:
            self._daemon.report(replace(action.report, at=time.time()))

    def _exit(self, action: Exit) -> None:
        self._kill_leave()
        self._signal(self._own, signal.SIGKILL)
        self._told.close()
        super()._exit(action)

    def _signal(self, process: Any, number: int) -> None:
        if process in self._children.running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **Driver.PERFORM,
        joins.StartLeave: _start_leave,
        joins.KillLeave: lambda self, action: self._kill_leave(),
        joins.StartJoin: _start_join,
        joins.End: _end,
        SendReport: _report,
        Exit: _exit,
        StartOver: lambda self, action: self._loop.call(partial(self._event, BaseGone(action.why, 1))),
    }
