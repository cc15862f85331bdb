"""A supervisor without training, for tests of the daemon on a real Slurm: it speaks the real protocol through the real
client and really submits companions; its throughput is made up.

Usage, as a batch script's program: stub_supervisor.py FOLDER [HOLD]. It ends when FOLDER/<job id>.end is there. HOLD
names a stage (accepted, granted, ready); there it waits for FOLDER/<job id>.go, or for the resize to be withdrawn. With
`fail` for HOLD its growths fail when they are granted. What it does is in FOLDER/<id>.log.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from waiting import wait_until

from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.errors import DaemonUnreachable, ElasticError, NotAllowed
from slurm_elastic.protocol.messages import Piece, Resize, Shape
from slurm_elastic.trainer_shim.allocation.commands import show_hostnames, show_job
from slurm_elastic.trainer_shim.allocation.slurm_job import parse_job

REPORT_S = 0.2


def call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=clean(), check=False)


def clean() -> dict[str, str]:
    """The environment without this job's own variables, which would change what the commands do."""
    return {key: value for key, value in os.environ.items() if not key.startswith("SLURM_") or key == "SLURM_CONF"}


def piece_of(job_id: int, kind: str) -> Piece:
    """What Slurm holds for a job."""
    shown = call(show_job(job_id)).stdout
    return parse_job(shown, job_id, lambda names: tuple(call(show_hostnames(names)).stdout.split())).piece(kind)


class Stub:
    """One job's supervisor; a single thread that takes one step after the other."""

    def __init__(self, folder: Path, hold: str) -> None:
        self.folder, self.hold = folder, hold
        count = int(os.environ.get("SLURM_HET_SIZE", "1"))
        ids = [int(os.environ["SLURM_JOB_ID"]) + offset for offset in range(count)]
        self.job_id = ids[0]
        kinds = ["base", *["component"] * (len(ids) - 1)]
        self.pieces = tuple(piece_of(job, kind) for job, kind in zip(ids, kinds, strict=True))
        self.batch, self.generation = 240, 0
        self.client = Client()
        self.token: str | None = None
        self.last = 0
        self.gone = False
        self.reported = 0.0
        self.owed: list[messages.Happening] = []
        self.path = f"/v1/jobs/{self.job_id}"

    def log(self, text: str) -> None:
        with (self.folder / f"{self.job_id}.log").open("a") as file:
            file.write(f"{time.time():.2f} {text}\n")

    def run(self) -> None:
        while not (self.folder / f"{self.job_id}.end").exists():
            try:
                if self.token is None:
                    self.register()
                self.settle_debts()
                self.report()
                self.poll()
            except NotAllowed:
                self.token = None
            except DaemonUnreachable:
                time.sleep(0.1)
        self.tell(0, "finished")
        self.cancel([piece.slurm_job_id for piece in self.pieces if piece.kind == "companion"])

    def register(self) -> None:
        message = messages.Registration(codec.VERSION, self.generation, self.pieces, self.batch, "stub")
        answer = self.client.post(f"{self.path}/register", codec.to_json(message))
        grant = codec.decode(messages.Grant, answer)
        self.token = grant.token
        self.log(f"registered managed={grant.managed} {grant.reason}")

    def report(self) -> None:
        if time.time() - self.reported < REPORT_S:
            return
        self.reported = time.time()
        gpus = sum(piece.gpus for piece in self.pieces)
        nodes = len({node for piece in self.pieces for node in piece.nodes})
        micro = max(1, self.batch // gpus)
        step = 0.004 * micro + 0.005 * math.log2(nodes + 1)
        self.steps = int(self.reported * 10)
        report = messages.Report(
            self.generation, self.reported, gpus, nodes, self.batch, micro, 1, 10, step, step, self.batch / step,
            self.steps, self.steps * 100, 0,
        )  # fmt: skip
        self.client.post(f"{self.path}/reports", codec.to_json(messages.Reports((report,))), token=self.token)

    def poll(self) -> None:
        answer = self.client.get(f"{self.path}/resize?after={self.last}&wait=0.3", token=self.token)
        if answer is None:
            return
        resize = codec.decode(Resize, answer)
        if resize.withdrawn or resize.id <= self.last:
            time.sleep(0.2)
            return
        self.last = resize.id
        self.resize(resize)

    def resize(self, resize: Resize) -> None:
        self.tell(resize.id, "accepted")
        if self.withdrawn_at("accepted", resize, []):
            return
        if resize.requeues:
            self.tell(resize.id, "saved")
            return
        added: list[Piece] = []
        for shape in resize.add:
            self.tell(resize.id, "submitted")
            piece = self.companion(shape, resize)
            if piece is None:
                self.cancel([piece.slurm_job_id for piece in added])
                self.tell(resize.id, "withdrawn", "no companion")
                return
            added.append(piece)
        if added:
            self.tell(resize.id, "granted")
            if self.hold == "fail":
                self.cancel([piece.slurm_job_id for piece in added])
                self.tell(resize.id, "failed", "the companion's workers were not ready in time")
            if self.hold == "fail" or self.withdrawn_at("granted", resize, added):
                return
        self.tell(resize.id, "ready")
        if self.withdrawn_at("ready", resize, added):
            return
        self.pieces, self.batch = (*resize.keep, *added), resize.batch
        self.generation += 1
        self.tell(resize.id, "running")

    def companion(self, shape: Shape, resize: Resize) -> Piece | None:
        command = [
            *("salloc", "--no-shell", f"--time={shape.minutes or 29}", "--nice=1000"),
            f"--job-name=selastic-{self.job_id}",
            f"--comment=selastic:companion-of={self.job_id};resize={resize.id}",
            *(f"--nodes={shape.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={shape.cpus_per_node}"),
            *(f"--gres=gpu:{shape.gpu_type}:{shape.gpus_per_node}", f"--nodelist={','.join(shape.node_list)}"),
            *(f"--partition={shape.partition}", f"--account={shape.account}", f"--qos={shape.qos}"),
            *([f"--mem={shape.mem_mb_per_node}"] if shape.mem_mb_per_node else []),
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean()) as asked:
            try:
                _, said = asked.communicate(timeout=resize.wait_s)
            except subprocess.TimeoutExpired:
                asked.terminate()
                _, said = asked.communicate()
        found = re.search(r"job allocation (\d+)", said)
        if asked.returncode != 0 or found is None:
            self.log(f"no companion: {said.strip()[-200:]}")
            return None
        return piece_of(int(found.group(1)), "companion")

    def withdrawn_at(self, stage: str, resize: Resize, added: list[Piece]) -> bool:
        """Whether the resize is withdrawn while this holds there; what it has added is given back then."""
        if stage != self.hold:
            return False
        self.log(f"holds at {stage}")
        go = self.folder / f"{self.job_id}.go"
        wait_until(lambda: go.exists() or self.is_withdrawn(resize), 600)
        if go.exists():
            return False
        self.cancel([piece.slurm_job_id for piece in added])
        self.tell(resize.id, "withdrawn", "selasticd took it back")
        return True

    def is_withdrawn(self, resize: Resize) -> bool:
        try:
            answer = self.client.get(f"{self.path}/resize?after={resize.id}&wait=0.1", token=self.token)
        except (DaemonUnreachable, NotAllowed):
            return False
        told = codec.decode(Resize, answer) if answer is not None else None
        return told is not None and told.withdrawn and told.id == resize.id

    def tell(self, resize_id: int, what: str, detail: str = "") -> None:
        self.log(f"{what} {sum(piece.gpus for piece in self.pieces)}")
        self.owed.append(
            messages.Happening(
                resize_id, what, self.generation, self.pieces, self.batch, time.time(), 0.05, detail=detail
            )
        )
        try:
            self.settle_debts()
        except (DaemonUnreachable, NotAllowed):
            return  # told later, in order

    def settle_debts(self) -> None:
        """Phases reach the daemon in order, however often it dies in between."""
        while self.owed:
            try:
                self.client.post(f"{self.path}/happenings", codec.to_json(self.owed[0]), token=self.token)
            except (DaemonUnreachable, NotAllowed):
                raise
            except ElasticError as error:
                self.log(f"refused: {error}")
            self.owed.pop(0)

    def cancel(self, job_ids: list[int]) -> None:
        if job_ids:
            call(["scancel", *map(str, job_ids)])


if __name__ == "__main__":
    Stub(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "").run()
