"""A process of another user on another host that attacks every port it hears of: run it by itself, with a folder.

Promise: of each line "address port" in `ports` it fills the port's memory as far as that lets it, says what torch's
store and a worker would say, and keeps idle connections, 2,048 of them at most. With a port in `take` it listens there
instead, answers whatever is asked with a resize, and writes down the requests; each line of `replay` is an address to
which it sends them again. `did` says what came of it. Limit: the standard library of the system's Python.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

IDLE = 2048
IDLE_A_PORT = 300
MOST = 256 << 20
"""Of one line without an end: more than a process may take that is attacked."""
FORGED = (
    b"\x00\x3c\x85\xf7\x09\x02\x00\x00\x00\x00\x00\x00\x00\x07members\x08\x00\x00\x00\x00\x00\x00",  # as to torch's
    b'{"kind":"worker","worker":"0.n1.0","proof":"00"}\n{"what":"add","keys":["1/arrived"],"value":"OTk=","number":1}\n',
    b"\xff\xff\xff\xff\x7f\x00\x00\x00" * 8,
)
ORDER = {"id": 7, "job_id": 0, "keep": [], "add": [], "gpus": 1, "batch": 16, "reason": "shrink", "wait_s": 60.0}


class Stranger:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.idle: list[socket.socket] = []
        self.did: dict[str, Any] = {"reached": [], "most": 0, "idle": 0, "heard": [], "answers": []}
        self.heard: list[tuple[str, str, dict[str, str], str]] = []

    def say(self) -> None:
        self.put("did", self.did)

    def put(self, name: str, content: object) -> None:
        partial = self.folder / f"{name}.partial"
        partial.write_text(json.dumps(content))
        partial.replace(self.folder / name)

    def attack(self, address: str, port: int) -> None:
        """Each kind once, then as many idle connections as it takes."""
        for content in (*FORGED, b"x" * 65536):
            with contextlib.suppress(OSError), socket.create_connection((address, port), 2) as sock:
                if port not in self.did["reached"]:
                    self.did["reached"].append(port)
                sent, most = 0, MOST if len(content) > 1000 else len(content)
                while sent < most:
                    sent += sock.send(content)
                    self.did["most"] = max(self.did["most"], sent)
                sock.settimeout(0.2)
                while sock.recv(4096):
                    pass
        for _ in range(IDLE_A_PORT):
            try:
                self.idle.append(socket.create_connection((address, port), 0.5))
            except OSError:
                break
        for sock in self.idle[:-IDLE]:
            sock.close()
        del self.idle[:-IDLE]
        self.did["idle"] = max(self.did["idle"], len(self.idle))

    def listen(self, port: int) -> None:
        """Answer as selasticd might, until `take` is gone."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
                outer.heard.append((self.command, self.path, headers, body.decode("latin-1")))
                outer.did["heard"].append(f"{self.command} {self.path}")
                content = json.dumps(
                    {"version": 2, "token": "t", "key": "k", "resize": ORDER, "resizes": [ORDER]}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("", port), Handler) as server:
            server.timeout = 0.05
            while (self.folder / "take").exists() and not (self.folder / "end").exists():
                server.handle_request()
                self.say()
        self.put("heard", self.heard)

    def replay(self, address: str, port: int) -> None:
        """Say again what was heard."""
        for method, path, headers, body in json.loads((self.folder / "heard").read_text()):
            connection = http.client.HTTPConnection(address, port, timeout=5)
            connection.request(method, path, body.encode("latin-1"), headers)
            self.did["answers"].append([method, path, connection.getresponse().status])
            connection.close()

    def lines(self, name: str, done: dict[str, int]) -> list[tuple[str, int]]:
        try:
            found = [line.split() for line in (self.folder / name).read_text().splitlines()]
        except OSError:
            return []
        new = [(address, int(port)) for address, port in found[done.get(name, 0) :]]
        done[name] = len(found)
        return new

    def run(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        done: dict[str, int] = {}
        while os.getppid() != 1 and not (self.folder / "end").exists():
            for address, port in self.lines("ports", done):
                threading.Thread(target=self.attack, args=(address, port), daemon=True).start()
            if (self.folder / "take").exists():
                self.listen(int((self.folder / "take").read_text()))
            for address, port in self.lines("replay", done):
                self.replay(address, port)
            self.say()
            time.sleep(0.005)


if __name__ == "__main__":
    Stranger(Path(sys.argv[1])).run()
