"""Other builds than this one: the release before, from the history, and one as the next could be.

The next is a copy that writes further fields into every message, leaves others out, and says a higher version.
Limit: of the next, what a release may change of messages (protocol/codec.py), and nothing else.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

from slurm_elastic.protocol.codec import VERSION

ROOT = Path(__file__).parents[2]


class Build(NamedTuple):
    """Code of which jobs and the daemon are."""

    path: Path
    """Its PYTHONPATH."""
    version: int = VERSION
    """Of its messages."""
    folder: str = "selasticd"
    """Of the daemon's folders the one that starts it."""


THIS = Build(ROOT / "packaging/namespace")
FORMER = "915b02d0"
"""The last commit whose messages are those of 0.2.0."""
DROPPED = {
    "Registration": ("program", "max_micro_batch", "release"),
    "Grant": ("reason", "report_interval_s", "request", "release"),
    "Report": ("noise_scale", "input_wait_share", "comm_share", "bottleneck", "bottleneck_rank", "epoch"),
    "Happening": ("at", "detail", "exit_code"),
    "Shape": ("mem_mb_per_node",),
}
"""Fields that the next release knows no more, by the message that had them."""
CHANGES = f"""

DROPPED = {DROPPED!r}
_decode_all = decode


def decode(kind, data, where=""):
    known = data
    if isinstance(data, dict):
        known = {{name: value for name, value in data.items() if name not in DROPPED.get(kind.__name__, ())}}
    return _decode_all(kind, known, where)


def of_tomorrow(value):
    if isinstance(value, (tuple, list)):
        return [of_tomorrow(item) for item in value]
    if not is_dataclass(value) or not type(value).__module__.endswith("protocol.messages"):
        return value
    kind = type(value).__name__
    kept = [item.name for item in fields(value) if item.name not in DROPPED.get(kind, ())]
    return {{name: of_tomorrow(getattr(value, name)) for name in kept}} | {{"of_tomorrow": {{"x": [1, None]}}}}


def to_json(message):
    return json.dumps(of_tomorrow(message), separators=(",", ":"), allow_nan=False).encode()
"""


def former_build(folder: Path) -> Build | None:
    """The release before, in this folder; None where this checkout lacks its history."""
    names = ("protocol", "trainer_shim", "daemon", "db")
    found = subprocess.run(["git", "-C", str(ROOT), "archive", FORMER, *names], capture_output=True)
    if found.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder / "slurm_elastic", filter="data")
    [version] = re.findall(r"^VERSION = (\d+)$", (folder / "slurm_elastic/protocol/codec.py").read_text(), flags=re.M)
    return Build(folder, int(version), "service")


def next_build(folder: Path) -> Build:
    """The next one, in this folder."""
    for name in ("protocol", "client", "trainer_shim", "daemon", "db"):
        shutil.copytree(
            ROOT / name, folder / "slurm_elastic" / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
        )
    codec = folder / "slurm_elastic/protocol/codec.py"
    code, count = re.subn(
        r"^VERSION = (\d+)$", lambda found: f"VERSION = {int(found[1]) + 1}", codec.read_text(), flags=re.M
    )
    assert count == 1
    codec.write_text(code + CHANGES)
    requests = folder / "slurm_elastic/daemon/api/requests.py"
    code = requests.read_text()
    assert code.count("msgspec.json.encode(value)") == 1
    requests.write_text(code.replace("msgspec.json.encode(value)", "msgspec.json.encode(codec.of_tomorrow(value))"))
    return Build(folder, VERSION + 1)
