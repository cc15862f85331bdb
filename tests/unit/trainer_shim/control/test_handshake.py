"""Supervisor and peers prove to each other that they have the job's key, which nobody sends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from control_peer import KEY, meet
from malformed import line
from socket_job import closed, job, received
from waiting import run

from slurm_elastic.protocol.json_lines import Message
from slurm_elastic.trainer_shim.control import handshake, job_key

FIELDS: Message = {"kind": "worker", "worker": "1.n1.0"}
IMPOSTOR = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    peer, _ = listener.accept()
    peer.sendall(b'{"type":"challenge","nonce":"00"}\\n')
    print(peer.recv(4096).decode(), flush=True)
    peer.sendall(b'{"type":"welcome","proof":"00"}\\n{"type":"spawn","worker":"w","env":{"LD_PRELOAD":"/tmp/x"}}\\n')
"""


def test_a_hello_is_good_for_its_challenge_alone() -> None:
    """Neither another connection's, nor another's name, nor another key makes one."""
    challenge = handshake.challenge()
    said = handshake.hello(KEY, challenge, FIELDS)
    assert handshake.proves(KEY, challenge, said)
    assert not handshake.proves(KEY, handshake.challenge(), said)
    assert not handshake.proves(KEY, challenge, {**said, "worker": "1.n1.1"})
    assert not handshake.proves("other", challenge, said)
    assert not handshake.proves(KEY, challenge, {**said, "proof": handshake.welcome(KEY, said)["proof"]})
    assert KEY not in json.dumps([challenge, said, handshake.welcome(KEY, said)])


def test_a_hello_that_was_listened_to_opens_nothing() -> None:
    """Said again, on a connection of one's own."""
    with job() as made, made.peer() as honest, made.peer() as stranger:
        said = made.hello(honest, "worker", "1.n1.0")
        made.say(honest, said)
        made.until(lambda: b"welcome" in received(honest))
        made.say(stranger, said)
        made.until(lambda: closed(stranger))
        assert not closed(honest)


def test_nothing_but_a_hello_is_taken_before_the_proof() -> None:
    """Not even with a proof of its own."""
    with job() as made, made.peer() as stranger:
        made.until(lambda: b"\n" in received(stranger))
        challenge = json.loads(stranger.recv(1 << 12))
        forged = {**handshake.hello(made.supervisor._key, challenge, FIELDS), "type": "exit"}
        made.say(stranger, line(**forged))
        made.until(lambda: closed(stranger))


@pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
def test_who_takes_the_supervisors_port_gets_no_key_and_is_not_obeyed() -> None:
    """Another user listens there, and answers as a supervisor would."""
    with subprocess.Popen([sys.executable, "-c", IMPOSTOR], stdout=subprocess.PIPE, text=True) as impostor:
        assert impostor.stdout is not None
        with (
            socket.create_connection(("127.0.0.1", int(impostor.stdout.readline()))) as sock,
            pytest.raises(OSError, match="does not prove to be of this job"),
        ):
            handshake.introduce(sock, KEY, FIELDS)
        heard = impostor.stdout.read()
    assert '"type":"hello"' in heard
    assert KEY not in heard


def test_what_follows_the_welcome_is_left_to_be_read() -> None:
    """The supervisor may say more at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def call() -> socket.socket:
            sock = socket.create_connection(listener.getsockname())
            handshake.introduce(sock, KEY, FIELDS)
            return sock

        sock, peer, said = meet(listener, call)
        with sock, peer:
            peer.sendall(b"more\n")
            assert said["worker"] == "1.n1.0"
            assert sock.recv(64) == b"more\n"


def test_the_key_leaves_the_environment(tmp_path: Path) -> None:
    """What a script starts, or prints, does not have it; a fork of the process still does."""
    program = (
        "import os; from slurm_elastic.trainer_shim.control import job_key\n"
        "first = job_key.take(os.environ)\n"
        "print(first, job_key.take(os.environ), os.popen('env').read().count(job_key.VARIABLE))"
    )
    env = {**job_key.without(os.environ), job_key.VARIABLE: KEY, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run([sys.executable, "-c", program], env=env)
    assert done.stdout.split() == [KEY, KEY, "0"]
    assert job_key.VARIABLE not in job_key.without(env)
