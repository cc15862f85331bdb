"""What a probe runs on the nodes: shell, and Python. Nothing of slurm-elastic need be there."""

import sys

BATCH = """#!/bin/sh
umask 077
trap 'rm -f FILE; exit 0' TERM
trap 'echo USR1 >>FILE' USR1
set -C; : >FILE; set +C
while :; do sleep 1 & wait $!; done
"""
"""The batch job: it writes down signals, in a file that nobody else can have made."""

BEARS = "trap 'echo USR1' USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"
"""A step that says which signals have come."""

ASK = """start=$(date +%s%N)
env -i PATH="$PATH" HOME="$HOME" USER="$USER" ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"} sh -c "$0" 2>&1
echo "$? $(( ($(date +%s%N) - start) / 1000000 ))"
"""
"""A command in the environment of a supervisor's; the last line is its exit status and its milliseconds."""

GPUS = """nvidia-smi -i "$CUDA_VISIBLE_DEVICES" --query-gpu=uuid --format=csv,noheader 2>/dev/null ||
echo "$CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES" | tr , ' '"""
"""The job's own: where devices are not constrained nvidia-smi alone shows every GPU of the node."""

LISTEN = """
import json, socket, subprocess
both = socket.has_dualstack_ipv6()
sock = socket.create_server(("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)
addresses = subprocess.check_output(["hostname", "-I"]).decode().split()
print(json.dumps([socket.gethostname(), addresses, sock.getsockname()[1]]), flush=True)
sock.settimeout(60)
while True:
    sock.accept()[0].close()
"""
CONNECT = """
import json, socket, sys
node, (host, addresses, port) = json.loads(sys.argv[1])
names, reached, failed = {}, [], {}
for name in {node, host}:
    try:
        names[name] = sorted({found[4][0] for found in socket.getaddrinfo(name, None)})
    except OSError:
        names[name] = []
for address in dict.fromkeys(addresses + sum(names.values(), [])):
    if host == socket.gethostname() or not (address.startswith("127.") or address == "::1"):
        try:
            socket.create_connection((address, port), 3).close()
            reached.append(address)
        except OSError as error:
            failed[address] = str(error.strerror or error)
print(json.dumps([names, reached, failed]))
"""


def python(program: str, *arguments: str) -> list[str]:
    """A command that runs a program by the Python that runs here, where the node has it, else by the node's own."""
    find = 'p=python3; [ -x "$0" ] && p=$0; exec "$p" -c "$@"'
    return ["sh", "-c", find, sys.executable, program, *arguments]
