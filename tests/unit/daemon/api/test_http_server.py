"""What the API's server uses of uvicorn beyond its documented interface is there in the installed version."""

from __future__ import annotations

import asyncio
import configparser
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from slurm_elastic.daemon.api import http_server
from slurm_elastic.daemon.selasticd.settings import Settings

CALLBACKS = {
    *("connection_made", "data_received", "connection_lost", "on_message_begin", "on_headers_complete", "on_body"),
    *("on_message_complete", "on_response_complete", "shutdown", "timeout_keep_alive_handler"),
}
STATE = {"loop", "parser", "server_state", "client", "transport", "flow", "cycle", "url", "headers"}
SERVER = {"config", "server_state", "lifespan", "servers", "started", "should_exit", "force_exit"}


async def app(scope: object, receive: object, send: object) -> None:
    """Never called."""


def test_a_connection_of_uvicorn_has_what_ours_builds_on() -> None:
    """Callbacks, the state of a request, and uvicorn's flow control."""

    async def made() -> HttpToolsProtocol:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})

        async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", port)
        server.close()
        return protocol

    protocol = asyncio.run(made())
    protocol.on_message_begin()
    assert {name for name in CALLBACKS if not callable(getattr(protocol, name, None))} == set()
    assert {name for name in STATE if not hasattr(protocol, name)} == set()
    assert {name for name in ("write_paused", "read_paused") if not hasattr(protocol.flow, name)} == set()
    assert protocol.server_state.default_headers == [] and protocol.server_state.connections is not None


def test_a_request_of_uvicorn_has_what_stands_in_for_it() -> None:
    """What uvicorn looks at in the request under way, our own class has too, while reports are written."""
    used = set(re.findall(r"(?:self\.|existing_)cycle\.(\w+)", inspect.getsource(HttpToolsProtocol)))
    stand_in = http_server._PendingReports(True)
    assert {"disconnected", "keep_alive", "response_complete", "message_event"} <= used
    # These are used of a request that uvicorn has made itself: reports never reach it.
    assert {name for name in used if not hasattr(stand_in, name)} <= {"body", "more_body", "run_asgi"}


def test_a_server_of_uvicorn_has_what_ours_builds_on() -> None:
    """The server's steps that are overridden, and its state."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)  # as Server.serve does
    assert {name for name in SERVER - {"servers"} if not hasattr(server, name)} == set()
    assert hasattr(server.config, "http_protocol_class") and hasattr(server.lifespan, "state")
    assert "self.servers" in inspect.getsource(uvicorn.Server.startup)
    for name in ("startup", "on_tick", "capture_signals", "run"):
        assert callable(getattr(uvicorn.Server, name, None)), name


def test_no_connection_becomes_a_websocket() -> None:
    """Whatever is installed beside uvicorn: a connection keeps its bounds."""
    config = http_server.server_config(SimpleNamespace(intake=None), Settings())  # type: ignore[arg-type]
    config.load()
    assert config.ws_protocol_class is None


def test_the_bounds_are_the_versions_that_were_tried() -> None:
    """What the module says of uvicorn is what pip is told."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[4] / "packaging/daemon/setup.cfg")
    assert "uvicorn >=0.30,<0.55" in setup["options"]["install_requires"]
    assert "uvicorn 0.30 to 0.54" in (http_server.__doc__ or "")
