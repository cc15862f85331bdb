"""The store through which the members of a world find each other: rank 0 holds it, and serves it in its control loop.

Only a process that proves to have the job's key is answered, as at a supervisor: a stranger can neither read nor write,
and takes no more memory than its few unproven connections. Limit: who can change packets under way is kept out by the
seals of entries alone (world/stores).
"""

import base64
import datetime
import secrets
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from slurm_elastic.protocol import json_lines
from slurm_elastic.protocol.json_lines import Malformed, Message, text, texts, whole

from . import handshake
from .event_loop import Loop
from .server import ControlServer

SET, ADD, DELETE, READ, WAIT, SWAP, COUNT = "set", "add", "delete", "read", "wait", "swap", "count"
Values = list["bytes | None"]


class KeyStore(ABC):
    """What rank 0's handle and the members' have in common, for any thread. Raises RuntimeError when it is gone."""

    timeout = datetime.timedelta(seconds=30)

    def set(self, key: str, value: bytes) -> None:
        self._ask(SET, [key], value)

    def add(self, key: str, value: int) -> int:
        """The sum of what has been added under this key."""
        return int(self._ask(ADD, [key], str(value).encode())[0] or 0)

    def swap(self, key: str, expected: bytes, desired: bytes) -> bytes | None:
        """Put `desired` where `expected` is, at once; what was there, None for nothing, which is as good as b""."""
        return self._ask(SWAP, [key], b"%d %b%b" % (len(expected), expected, desired))[0]

    def delete_key(self, key: str) -> bool:
        return self._ask(DELETE, [key])[0] is not None

    def count(self, prefix: str) -> int:
        """Entries whose keys begin like that."""
        return int(self._ask(COUNT, [prefix])[0] or 0)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these entries are there."""
        return None not in self._ask(READ, keys)

    def read(self, keys: Sequence[str]) -> Values:
        """Each entry, None where there is none."""
        return self._ask(READ, keys)

    def get(self, key: str) -> bytes:
        value = self._ask(READ, [key])[0]
        if value is None:
            raise RuntimeError(f"nobody has written {key}")
        return value

    @abstractmethod
    def wait(self, keys: Sequence[str], seconds: float) -> bool:
        """Whether all of these entries are there within this time."""

    @abstractmethod
    def _ask(self, what: str, keys: Sequence[str], value: bytes = b"") -> Values: ...


class WorldStore(KeyStore):
    """Rank 0's handle. The store ends with it."""

    def __init__(self, loop: Loop, key: str, listen: str, tell: Callable[[str], None]) -> None:
        """listen: the address to listen on; "" for all of this host's. Called in the loop's thread."""
        self._served = _Served(loop, key, listen, tell)
        self.port = self._served.server.port
        weakref.finalize(self, loop.call, self._served.server.close).atexit = False

    def close_door(self) -> None:
        """All members are there: nobody else is let in."""
        self._served.loop.call(self._served.server.close_door)

    def wait(self, keys: Sequence[str], seconds: float) -> bool:
        served = self._served
        with served.changed:
            return served.changed.wait_for(lambda: served.has(keys), seconds)

    def _ask(self, what: str, keys: Sequence[str], value: bytes = b"") -> Values:
        values = self._served.do(what, keys, value)
        if what != READ:
            self._served.loop.call(self._served.answer_waiting)
        return values


class _Served:
    """The entries, and who waits for which."""

    def __init__(self, loop: Loop, key: str, listen: str, tell: Callable[[str], None]) -> None:
        self.loop = loop
        self.changed = threading.Condition()
        self._entries: dict[str, bytes] = {}
        self._waiting: dict[str, tuple[int, list[str]]] = {}
        """By member: the number of its question, and the keys."""
        self.server = ControlServer(loop, key, listen, lambda *_: None, self._asked, self._gone, tell)

    def has(self, keys: Sequence[str]) -> bool:
        return all(key in self._entries for key in keys)

    def do(self, what: str, keys: Sequence[str], value: bytes) -> Values:
        with self.changed:
            before: Values = [self._entries.get(key) for key in keys]
            if what == SET:
                self._entries[keys[0]] = value
            elif what == ADD:
                self._entries[keys[0]] = before[0] = b"%d" % (int(before[0] or 0) + int(value))
            elif what == SWAP:
                length, _, rest = value.partition(b" ")
                if (before[0] or b"") == rest[: int(length)]:
                    self._entries[keys[0]] = rest[int(length) :]
            elif what == COUNT:
                before[0] = b"%d" % sum(key.startswith(keys[0]) for key in self._entries)
            elif what == DELETE:
                self._entries.pop(keys[0], None)
            self.changed.notify_all()
            return before

    def answer_waiting(self) -> None:
        for member, (number, keys) in list(self._waiting.items()):
            if self.has(keys):
                del self._waiting[member]
                self._answer(member, number, [])

    def _asked(self, kind: str, member: str, message: Message) -> None:
        what, keys, number = text(message, "what"), texts(message, "keys"), whole(message, "number")
        if not keys:
            raise Malformed("no key")
        if what == WAIT:
            self._waiting[member] = (number, list(keys))
        else:
            try:
                values = self.do(what, keys, base64.b64decode(text(message, "value", "")))
            except ValueError as error:
                raise Malformed(str(error)) from None
            self._answer(member, number, values)
        if what != READ:
            self.answer_waiting()

    def _answer(self, member: str, number: int, values: Values) -> None:
        packed = [None if value is None else base64.b64encode(value).decode() for value in values]
        self.server.send("worker", member, {"number": number, "values": packed})

    def _gone(self, kind: str, member: str) -> None:
        self._waiting.pop(member, None)


class RemoteStore(KeyStore):
    """A member's connection to the store of its world's rank 0."""

    def __init__(self, host: str, port: int, key: str, patience_s: float) -> None:
        """patience_s: for the connection, and for each answer. Raises OSError when nobody of this job answers."""
        self.timeout = datetime.timedelta(seconds=patience_s)
        self._socket = handshake.call(host, port, key, {"kind": "worker", "worker": secrets.token_hex(8)}, patience_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader, self._lock, self._number = json_lines.MessageReader(), threading.Lock(), 0

    def wait(self, keys: Sequence[str], seconds: float) -> bool:
        with self._lock:
            return self._answer(WAIT, keys, b"", seconds) is not None

    def _ask(self, what: str, keys: Sequence[str], value: bytes = b"") -> Values:
        with self._lock:
            values = self._answer(what, keys, value, self.timeout.total_seconds())
            if values is None:
                self._socket.close()
                raise RuntimeError(f"rank 0 does not answer within {self.timeout.total_seconds():g} s")
        return [None if each is None else base64.b64decode(each) for each in values]

    def _answer(self, what: str, keys: Sequence[str], value: bytes, seconds: float) -> list[str | None] | None:
        """None: not within this time. An answer that comes later is passed over."""
        self._number += 1
        asked = {"what": what, "keys": list(keys), "number": self._number, "value": base64.b64encode(value).decode()}
        deadline = time.monotonic() + seconds
        try:
            self._socket.settimeout(self.timeout.total_seconds())
            self._socket.sendall(json_lines.encode(asked))
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                try:
                    data = self._socket.recv(1 << 16)
                except TimeoutError:
                    return None
                if not data:
                    raise ConnectionResetError("rank 0 has closed it")
                self._reader.feed(data)
                for message in self._reader.messages():
                    if message.get("number") == self._number:
                        values: list[str | None] = message["values"]
                        return values
        except (OSError, Malformed, KeyError) as error:
            self._socket.close()
            raise RuntimeError(str(error)) from None
        return None
