"""How both ends of a control connection prove that they have the job's key, which is itself never sent.

The supervisor sends a challenge. Who has called answers with a hello, which holds a challenge to the supervisor, and
the supervisor answers that. A proof is good for one connection, one direction and one hello: who has listened can use
it for nothing. Limit: what is said afterwards is neither hidden nor sealed.
"""

import hashlib
import hmac
import json
import secrets
import socket
import time

from slurm_elastic.protocol import json_lines
from slurm_elastic.protocol.json_lines import Message, text

MAX_LINE = 4096
PROOF_S = 10.0
"""How long a caller waits for each of the other end's messages."""


def challenge() -> Message:
    return {"type": "challenge", "nonce": secrets.token_hex(16)}


def hello(key: str, challenged: Message, fields: Message) -> Message:
    """What answers a challenge: these fields, proven, and a challenge of one's own. Raises Malformed."""
    unproven = {**fields, "type": "hello", "nonce": secrets.token_hex(16)}
    return {**unproven, "proof": _proof(key, text(challenged, "nonce"), unproven)}


def proves(key: str, challenged: Message, answer: Message) -> bool:
    """Whether this is a hello of somebody who has the key, made for this challenge. Never raises."""
    unproven = {name: value for name, value in answer.items() if name != "proof"}
    return answer.get("type") == "hello" and _fits(answer, _proof(key, challenged["nonce"], unproven))


def welcome(key: str, said: Message) -> Message:
    """The supervisor's answer to a hello that was right."""
    return {"type": "welcome", "proof": _proof(key, str(said.get("nonce")), "welcome")}


def call(host: str, port: int, key: str, fields: Message, patience_s: float) -> socket.socket:
    """A connection to who listens there, once both have proven themselves; called again where that ends early, for too
    many may have called at once. Raises OSError when nobody listens, or nobody has proven it within that time."""
    deadline = time.monotonic() + patience_s
    while True:
        sock = socket.create_connection((host, port), timeout=patience_s)
        try:
            introduce(sock, key, fields)
            return sock
        except OSError:
            sock.close()
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)


def introduce(sock: socket.socket, key: str, fields: Message) -> None:
    """Say hello to a supervisor, or to a world's store, and wait until it has proven itself.

    Raises OSError, with a sentence, for one that does not.
    """
    sock.settimeout(PROOF_S)
    try:
        said = hello(key, _line(sock), fields)
        sock.sendall(json_lines.encode(said))
        proven = _fits(_line(sock), _proof(key, said["nonce"], "welcome"))
    except json_lines.Malformed:
        proven = False
    if not proven:
        raise ConnectionRefusedError(0, "who listens there does not prove to be of this job")


def _fits(message: Message, proof: str) -> bool:
    given = message.get("proof")
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), proof.encode())


def _proof(key: str, nonce: str, what: Message | str) -> str:
    signed = json.dumps([nonce, what], sort_keys=True)
    return hmac.new(key.encode(), signed.encode(), hashlib.sha256).hexdigest()


def _line(sock: socket.socket) -> Message:
    """The next message, and nothing of what comes after it."""
    reader = json_lines.MessageReader()
    taken = 0
    while taken < MAX_LINE:
        data = sock.recv(MAX_LINE, socket.MSG_PEEK)
        if not data:
            break
        data = sock.recv(data.find(b"\n") + 1 or len(data))
        taken += len(data)
        reader.feed(data)
        for message in reader.messages():
            return message
    raise json_lines.Malformed("the connection ended, or a line is too long")
