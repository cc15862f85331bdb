"""A selasticd for tests of the supervisor: takes registrations, phases and reports; hands out what a test orders."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from waiting import wait_until

from slurm_elastic.protocol import codec
from slurm_elastic.protocol.api import munge, proofs
from slurm_elastic.protocol.api.proofs import JobProofs
from slurm_elastic.protocol.messages import Grant, Happening, Piece, Rate, Registration, Report, Reports, Resize, Shape


class FakeDaemon:
    """Speaks the supervisor's half of the protocol over real HTTP, in threads. Use it in a with statement."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.registrations: list[Registration] = []
        self.happenings: list[Happening] = []
        self.rates: list[Rate] = []
        self.reports: list[Report] = []
        self._current: Resize | None = None
        self._changed = threading.Condition()
        self._token = 0
        self._proofs: JobProofs | None = None
        self._closed = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self, b"")

            def do_POST(self) -> None:
                outer._answer(self, self.rfile.read(int(self.headers.get("Content-Length", "0"))))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.host, self.port = host, int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> FakeDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gone, like a killed daemon: nothing listens on the port any more, and who waits for an answer gets none."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def env(self, folder: Path) -> dict[str, str]:
        """The environment by which a supervisor finds this daemon."""
        file = folder / "client.json"
        file.write_text(json.dumps({"url": f"http://{self.host}:{self.port}", "secret": "s"}))
        return {"SELASTIC_CLIENT_CONF": str(file)}

    def forget_tokens(self) -> None:
        """Answer 401 to every registration so far."""
        with self._changed:
            self._proofs = None

    def order(
        self,
        id: int,
        job_id: int,
        keep: tuple[Piece, ...],
        add: tuple[Shape, ...] = (),
        batch: int = 0,
        wait: float = 60,
    ) -> Resize:
        """Hand out a resize from now on."""
        gpus = sum(piece.gpus for piece in keep) + sum(shape.gpus for shape in add)
        resize = Resize(id, job_id, keep, add, gpus, batch, "grow_idle", wait)
        with self._changed:
            self._current = resize
            self._changed.notify_all()
        return resize

    def wait_phase(self, resize_id: int, phase: str, timeout: float = 60) -> Happening:
        """The first such phase, once it has come."""

        def find() -> Happening | None:
            return next((p for p in list(self.happenings) if (p.resize, p.what) == (resize_id, phase)), None)

        found = wait_until(
            find,
            timeout,
            lambda: f"{phase} of {resize_id}; seen: {[(p.resize, p.what, p.detail) for p in self.happenings]}",
        )
        assert found is not None
        return found

    def wait_registered(self, timeout: float = 60) -> Registration:
        wait_until(lambda: self.registrations, timeout, "a registration")
        return self.registrations[-1]

    @property
    def ordered(self) -> int:
        """The number of the last resize that was handed out."""
        return self._current.id if self._current else 0

    def ended(self, resize_id: int) -> Happening | None:
        """How a resize has ended, if it has."""
        over = ("running", "failed", "withdrawn")
        return next((one for one in list(self.happenings) if one.resize == resize_id and one.what in over), None)

    def told(self) -> list[tuple[int, str]]:
        """(resize, phase) in the order of arrival."""
        return [(phase.resize, phase.what) for phase in self.happenings]

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        url = urlsplit(request.path)
        what = url.path.rsplit("/", 1)[-1]
        bound = munge.bind(request.command, request.path, body)
        proof = request.headers.get("Authorization", "").removeprefix("Proof ")
        known = self._proofs is not None and self._proofs.take(proof, bound)
        code, answer = 200, b""
        if what == "register":
            self.registrations.append(codec.from_json(Registration, body))
            self._token += 1
            self._proofs = JobProofs(b"s", f"t{self._token}")
            answer = codec.to_json(Grant(f"t{self._token}", True, "", 0.5))
        elif not known:
            code, answer = 401, b'{"error": "unknown token"}'
        elif what == "happenings":
            self.happenings.append(codec.from_json(Happening, body))
        elif what == "rates":
            self.rates.append(codec.from_json(Rate, body))
        elif what == "reports":
            self.reports.extend(codec.from_json(Reports, body).reports)
        else:
            asked = {key: float(value[0]) for key, value in parse_qs(url.query).items()}
            answer = self._wait_resize(int(asked.get("after", 0)), asked.get("wait", 0.0))
            if self._closed:
                request.close_connection = True
                return
            code = 200 if answer else 204
        with contextlib.suppress(ConnectionError):  # who asked has gone
            request.send_response(code)
            request.send_header("Content-Length", str(len(answer)))
            nonce = request.headers.get(proofs.NONCE, "")
            proof = proofs.prove_answer(b"s", nonce, request.path, code, answer)
            request.send_header(proofs.PROOF, proof)
            request.end_headers()
            request.wfile.write(answer)

    def _wait_resize(self, after: int, seconds: float) -> bytes:
        def new() -> bool:
            current = self._current
            return current is not None and (current.id > after or current.withdrawn)

        with self._changed:
            self._changed.wait_for(lambda: new() or self._closed, seconds)
            return codec.to_json(self._current) if new() else b""
