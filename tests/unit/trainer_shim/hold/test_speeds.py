"""Where the figures of a program come from."""

from __future__ import annotations

import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.trainer_shim.hold import tell
from slurm_elastic.trainer_shim.hold.speeds import follow, metric, reader


@pytest.mark.parametrize(
    ("written", "read"), [("12.5\n", 12.5), ("3 of 4", 3.0), ("", None), ("soon", None), ("\xff", None), (None, None)]
)
def test_a_file_that_holds_no_number_is_no_figure(tmp_path: Path, written: str | None, read: float | None) -> None:
    """The program may be about to write it."""
    if written is not None:
        (tmp_path / "speed").write_bytes(written.encode("latin-1"))
    assert reader(str(tmp_path / "speed"))() == read


TEXT = """# HELP done_total tasks
done_total{node="n1"} 40
done_total{node="n2"} 2.0 1395066363000
done_total_created 7
speed 12.5
"""


def test_metrics_are_summed_over_their_labels() -> None:
    assert (metric(TEXT, "done_total"), metric(TEXT, "speed"), metric(TEXT, "done")) == (42.0, 12.5, None)


def test_a_counter_is_what_it_grows_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing where the program has begun anew, or does not answer."""
    values, clock = iter(("10", "30", "4", "8")), iter((100.0, 110.0, 120.0, 122.0))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"done_total {next(values)}\n".encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    read = reader(f"http://127.0.0.1:{server.server_address[1]}/metrics#done_total")
    monkeypatch.setattr("slurm_elastic.trainer_shim.hold.speeds.time.monotonic", lambda: next(clock))
    assert [read() for _ in range(4)] == [None, 2.0, None, 2.0]
    server.shutdown()
    server.server_close()
    assert read() is None


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 500 Oh\r\n\r\nspeed 12.5\n",
        b"HTTP/1.0 200 OK\r\n\r\nspeed soon\n",
        b"HTTP/1.0 200 OK\r\n\r\n<html>speed 12.5</html>",
        b"\x00\xff not HTTP\r\n",
        b"",
    ],
)
def test_answers_that_are_no_metrics_are_no_figure(answer: bytes) -> None:
    """And the next is asked for all the same."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(4096)
                client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert reader(f"http://127.0.0.1:{server.getsockname()[1]}/#speed")() is None


@pytest.mark.parametrize("said", ["nan", "inf", "-inf", "-3", "1e999"])
def test_figures_that_nothing_can_be_are_not_handed_on(tmp_path: Path, said: str) -> None:
    heard, read = queue.Queue[float](), threading.Event()

    def every_s() -> float:
        read.set()
        return 0.05

    (tmp_path / "speed").write_text(said)
    follow(str(tmp_path / "speed"), every_s, heard.put)
    assert read.wait(30), "what it says first is looked at"
    (tmp_path / "new").write_text("12.5")
    (tmp_path / "new").replace(tmp_path / "speed")
    assert heard.get(timeout=30) == 12.5


@pytest.mark.parametrize("where", ["http://host/metrics", "http://host/metrics#no name", "ftp://host/speed", "~/speed"])
def test_what_is_no_source_is_refused(where: str) -> None:
    with pytest.raises(ConfigError, match="accepted: "):
        reader(where)


@pytest.mark.parametrize(
    "words", ["", "go", "ready", "samples=1", "samples=1 seconds=0", "samples=-1 seconds=1", "samples=nan seconds=1",
              "samples=1 seconds=1 more=1", "samples=1 seconds=inf", "samples=x seconds=1"],
)  # fmt: skip
def test_what_is_told_is_checked(words: str) -> None:
    assert tell.said("samples=512 seconds=2", "") == {"type": "figure", "per_s": 256.0}
    assert tell.said("ready", "11.n2.1") == {"type": "ready", "join": "11.n2.1"}
    with pytest.raises(ConfigError, match="accepted: ready, in a join command, or samples=N seconds=S"):
        tell.said(words, "")
