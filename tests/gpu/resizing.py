"""A training that a check resizes by hand: workers that share the one GPU, and a supervisor that does what it is told.

NCCL refuses two ranks on one GPU, so that they add up over gloo; the stand-in has its own backend.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checking import STAND_IN, Check, left_s

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import audited
from worker_harness import Control, Zygote

SCRIPT = Path(__file__).with_name("resized.py")


class Training:
    """One training of resized.py; close() ends its processes."""

    def __init__(self, check: Check, folder: Path, kind: str, **env: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.check, self.folder, self.kind = check, folder, kind
        given = {"PYTHONPATH": os.environ["PYTHONPATH"], "SELASTIC_CUDA_BACKEND": "" if STAND_IN else "gloo", **env}
        if not check.cuda:
            given["CUDA_VISIBLE_DEVICES"] = ""
        self.zygote = Zygote(
            *filter(None, [STAND_IN]),
            **{key: value for key, value in given.items() if value or key == "CUDA_VISIBLE_DEVICES"},
        )
        self.control = Control(self.zygote, folder, [kind, "0"], SCRIPT)
        self.names = 0

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            print(self.control.story(), flush=True)
        self.control.close()
        self.zygote.close()

    def new(self, count: int, **env: str) -> list[str]:
        """So many further workers, which are ready."""
        names = [f"w{self.names + number}" for number in range(count)]
        self.names += count
        self.control.spawn(*names, **env)
        for name in names:
            self._said("ready", [name])
        return names

    def begin(self, size: int) -> None:
        names = self.new(size)
        self._running(self.control.world(*names, source="fresh"))

    def _running(self, generation: int) -> None:
        self._said("running", self.control.members, lambda said: bool(said["generation"] == generation))

    def _said(self, kind: str, by: list[str], wanted: Callable[[dict[str, Any]], bool] = lambda said: True) -> None:
        """Wait until one of these says so. Raises AssertionError when one of them ends before."""
        control = self.control
        while not any(name in by and said["type"] == kind and wanted(said) for name, said in list(control.said)):
            ended = [name for name in by if control.prefix + name in self.zygote.codes]
            if ended or left_s() < 2:
                raise AssertionError(f"{', '.join(ended)} ended" if ended else f"nobody says {kind}")
            time.sleep(0.02)

    def resize(self, size: int, joiners: list[str] | None = None) -> float:
        """To this many; the seconds until the new world runs. joiners: who is ready already."""
        control = self.control
        stay = control.members[:size]
        joined = joiners if joiners is not None else self.new(size - len(stay))
        begun = time.perf_counter()
        self._running(control.world(*stay, *joined))
        return time.perf_counter() - begun

    def stepped(self, more: int = 3) -> None:
        """Wait until so many more steps are done."""
        first = len(self.seen(self.control.members[0]))
        while len(self.seen(self.control.members[0])) < first + more:
            if left_s() < 2:
                raise AssertionError(f"no {more} steps in time\n{self.control.story()}")
            time.sleep(0.02)

    def seen(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"seen.{name}"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def ends(self) -> dict[str, Any]:
        """The end of the training; its result."""
        (self.folder / "go").touch()
        members = self.control.members
        codes = self.control.exits(*members, timeout_s=left_s())
        if any(codes):
            raise AssertionError(f"ended with {codes}\n{self.control.story()}")
        found: dict[str, Any] = torch.load(self.folder / "final.pt")
        return found

    def alone(self, epochs: int, device: str = "") -> dict[str, Any]:
        """The same in one process that nobody resizes."""
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" and not STAND_IN else {}
        self.zygote.spawn(
            "alone", SCRIPT, [self.kind, str(epochs), str(self.folder)], hidden, self.folder / "alone.log"
        )
        if code := self.zygote.wait("alone", left_s()):
            raise AssertionError(f"alone: {code} {(self.folder / 'alone.log').read_text()[-2000:]}")
        found: dict[str, Any] = torch.load(self.folder / "alone.pt")
        return found

    def audited(self, samples: int, epochs: int) -> str:
        """ "" if each sample of each epoch was trained on once."""
        found = audited.check(self.control.audit, samples, epochs)
        return "" if found.ok else str(found)


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float((one["model"][key] - other["model"][key]).abs().max()) for key in one["model"])
