"""The stand-in for a GPU and NCCL (tests/nccl_standin), built at its first use for the torch of this Python.

Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "tests" / "nccl_standin"
SOURCE = HOME / "standin.cpp"
ASKS = "import os, torch; print(torch.__version__, os.path.dirname(torch.__file__), torch._C._GLIBCXX_USE_CXX11_ABI)"


class Missing(Exception):
    """Why there is none, in one sentence."""


@cache
def built() -> Path:
    """The library. Raises Missing where there is no compiler, or no CPU build of torch."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise Missing("the stand-in for NCCL is not built: there is no g++ here")
    asked = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True)
    if asked.returncode:
        raise Missing("the stand-in for NCCL is not built: it takes a CPU build of torch, and this Python has none")
    version, folder, abi = asked.stdout.split()
    if not version.endswith("+cpu"):
        raise Missing(f"the stand-in for NCCL is not built: it takes a CPU build of torch, and this is {version}")
    headers = sysconfig.get_paths()["include"]
    if not (Path(headers) / "Python.h").is_file():
        raise Missing(f"the stand-in for NCCL is not built: there is no {headers}/Python.h")
    known = hashlib.sha256(f"{version} {sys.version} {folder}".encode() + SOURCE.read_bytes()).hexdigest()[:12]
    library = ROOT / "build" / "nccl_standin" / known / "standin_c.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _build(compiler, Path(folder), headers, abi == "True", library)
    return library


def _build(compiler: str, torch: Path, headers: str, abi: bool, library: Path) -> None:
    made = library.with_suffix(".new")
    command = [compiler, "-O0", "-fPIC", "-shared", "-std=c++20", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}"]
    command += ["-DTORCH_EXTENSION_NAME=standin_c", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"]
    command += [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", f"-I{headers}", str(SOURCE)]
    command += ["-o", str(made), f"-L{torch}/lib", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
    done = subprocess.run([*command, f"-Wl,-rpath,{torch}/lib"], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"the stand-in for NCCL does not build: {done.stderr[-2000:]}")
    made.rename(library)


def environment(here: bool = False, path: str = "", **settings: str) -> dict[str, str]:
    """Of a process whose agents are to have the stand-in (with --preload standin); here: of one that has it itself.

    path: more of its PYTHONPATH. settings: as standin.py names them. Raises Missing.
    """
    library = built()
    folders = [str(ROOT / "packaging" / "namespace"), str(HOME), str(library.parent), *filter(None, [path])]
    found = {"PYTHONPATH": os.pathsep.join(folders), "STANDIN_SO": str(library), "OMP_NUM_THREADS": "1"}
    return {**found, **({"STANDIN_HERE": "1"} if here else {}), **settings}
