"""The files of a private Slurm, rendered from what is asked. Pure: nothing here looks at the machine.

Written for Slurm 22.05 and kept to keys that newer releases know too; what one of them refuses is left out there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

CLUSTER = "sandbox"
ACCOUNT = "research"
USERS = ("root", "games", "daemon", "nobody")
"""Users known to accounting: root, and some that every Debian has, so that a test with two users adds none.

Nothing can be granted to nobody: Slurm 26.05 takes the number 65534 for no user at all."""


@dataclass(frozen=True)
class SandboxSpec:
    """What a private Slurm looks like. Every node is a slurmd of its own, on this host."""

    nodes: int = 8
    """Compute nodes, named n1, n2, …"""
    gpus_per_node: int = 4
    """Pretended GPUs of each node; 0 for a cluster of CPUs."""
    gpu_type: str = "a100"
    """Type of the GPUs, as in --gres=gpu:a100:2."""
    cpus_per_node: int = 16
    """Processors each node says it has, whatever this host has: the sandbox oversubscribes it."""
    threads_per_core: int = 1
    """Hardware threads of each core; a processor is a thread."""
    mem_mb: int = 16384
    """Memory each node says it has, in MiB."""
    with_accounting: bool = True
    """Run slurmdbd on a MariaDB of its own, so that sacct and sacctmgr work."""
    kill_wait_s: int = 10
    """Seconds between SIGTERM and SIGKILL of a job that is cancelled (Slurm's own default is 30)."""
    extra_slurm_conf: tuple[str, ...] = ()
    """Further lines of slurm.conf, for example a SPANK plugin or a prolog."""
    extra_files: dict[str, str] = field(default_factory=dict)
    """Further files beside slurm.conf, name to text, which anybody may run: {"job_submit.lua": "..."}."""
    binaries: dict[str, str] = field(default_factory=dict)
    """Programs to run in place of the installed ones: {"slurmctld": "/opt/slurm/sbin/slurmctld"}."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("nodes", 1, 512),
            ("gpus_per_node", 0, 64),
            ("cpus_per_node", 1, 1024),
            ("threads_per_core", 1, 8),
            ("mem_mb", 256, 1 << 24),
            ("kill_wait_s", 1, 600),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise SandboxError(f"{name}={value} of the sandbox is outside {least}-{most}.")
        if self.cpus_per_node % self.threads_per_core:
            raise SandboxError(
                f"cpus_per_node={self.cpus_per_node} of the sandbox must be a multiple of"
                f" threads_per_core={self.threads_per_core}."
            )
        if not self.gpu_type.isalnum():
            raise SandboxError(f"gpu_type={self.gpu_type!r} of the sandbox must be letters and digits, such as a100.")


@dataclass(frozen=True)
class Layout:
    """Where one sandbox lives: its directory, the name and address of slurmctld's host, and its ports."""

    dir: Path
    host: str
    first_port: int
    gpu_files: tuple[str, ...]
    address: str = "127.0.0.1"

    @property
    def slurmctld_port(self) -> int:
        return self.first_port

    @property
    def slurmdbd_port(self) -> int:
        return self.first_port + 1

    @property
    def first_node_port(self) -> int:
        return self.first_port + 2

    @property
    def munge_socket(self) -> Path:
        return self.dir / "run" / "munge.socket"

    @property
    def slurm_conf(self) -> Path:
        return self.dir / "slurm.conf"


def ports_needed(spec: SandboxSpec) -> int:
    """Ports of one sandbox: slurmctld, slurmdbd and one for each node."""
    return 2 + spec.nodes


def node_names(spec: SandboxSpec) -> list[str]:
    """n1, n2, …"""
    return [f"n{i}" for i in range(1, spec.nodes + 1)]


def slurm_conf(spec: SandboxSpec, at: Layout) -> str:
    """slurm.conf. SlurmUser is root: one account runs everything, and root may act for any user of the tests."""
    nodes = "n1" if spec.nodes == 1 else f"n[1-{spec.nodes}]"
    last_port = at.first_node_port + spec.nodes - 1
    ports = str(last_port) if spec.nodes == 1 else f"[{at.first_node_port}-{last_port}]"
    cores = spec.cpus_per_node // spec.threads_per_core
    gres = f" Gres=gpu:{spec.gpu_type}:{spec.gpus_per_node}" if spec.gpus_per_node else ""
    lines = [
        f"ClusterName={CLUSTER}",
        f"SlurmctldHost={at.host}({at.address})",
        f"SlurmctldPort={at.slurmctld_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={at.munge_socket}",
        f"StateSaveLocation={at.dir}/state",
        f"SlurmdSpoolDir={at.dir}/spool/%n",
        f"SlurmctldPidFile={at.dir}/slurmctld.pid",
        f"SlurmdPidFile={at.dir}/slurmd-%n.pid",
        f"SlurmctldLogFile={at.dir}/log/slurmctld.log",
        f"SlurmdLogFile={at.dir}/log/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        # No cgroups and no affinity: the nodes share one host that is smaller than they say.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SwitchType=switch/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        # A job that asks for no memory leaves room for others on its node.
        f"DefMemPerCPU={max(1, spec.mem_mb // spec.cpus_per_node)}",
        "PreemptMode=OFF",
        "SchedulerType=sched/backfill",
        # Tests wait for starts: schedule at once instead of every minute.
        "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2",
        f"KillWait={spec.kill_wait_s}",
        "InactiveLimit=0",
        "MinJobAge=300",
        "Waittime=0",
        "MaxJobCount=20000",
        *_accounting(spec, at),
        *(["GresTypes=gpu"] if gres else []),
        f"NodeName={nodes} NodeHostname={at.host} NodeAddr={at.address} Port={ports}"
        f" CPUs={spec.cpus_per_node} CoresPerSocket={cores} ThreadsPerCore={spec.threads_per_core}"
        f" RealMemory={spec.mem_mb}{gres} State=UNKNOWN",
        f"PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP",
        *spec.extra_slurm_conf,
    ]
    return "\n".join(lines) + "\n"


def _accounting(spec: SandboxSpec, at: Layout) -> list[str]:
    if not spec.with_accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    lines = [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={at.address}",
        f"AccountingStoragePort={at.slurmdbd_port}",
        # With MUNGE on its own socket this key carries the path of the socket, not a password.
        f"AccountingStoragePass={at.munge_socket}",
        # AccountingStorageEnforce is left out: no association, limit or QOS keeps a job from starting.
        "AccountingStoreFlags=job_comment",
    ]
    if spec.gpus_per_node:
        lines.append(f"AccountingStorageTRES=gres/gpu,gres/gpu:{spec.gpu_type}")
    return lines


def gres_conf(spec: SandboxSpec, at: Layout) -> str:
    """gres.conf: without File= Slurm would not set CUDA_VISIBLE_DEVICES."""
    if not spec.gpus_per_node:
        return "# no GPUs\n"
    return "".join(f"Name=gpu Type={spec.gpu_type} File={file}\n" for file in at.gpu_files)


def slurmdbd_conf(at: Layout) -> str:
    """slurmdbd.conf; slurmdbd insists on mode 600 for it."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={at.munge_socket}",
            "DbdHost=localhost",
            f"DbdAddr={at.address}",
            f"DbdPort={at.slurmdbd_port}",
            "SlurmUser=root",
            "DebugLevel=info",
            f"LogFile={at.dir}/log/slurmdbd.log",
            f"PidFile={at.dir}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageLoc=slurm_acct_db",
            "StorageUser=root",
            "",
        ]
    )


def my_cnf(at: Layout) -> str:
    """MariaDB's options: small and without any durability, since the data dies with the sandbox. No TCP port."""
    data = at.dir / "db"
    return "\n".join(
        [
            "[client]",
            f"socket={data}/mysql.sock",
            "[mariadbd]",
            f"datadir={data}/data",
            f"socket={data}/mysql.sock",
            f"pid-file={data}/mariadbd.pid",
            f"tmpdir={data}",
            "user=mysql",
            "skip-networking",
            "skip-log-bin",
            "performance_schema=0",
            "innodb_buffer_pool_size=32M",
            "innodb_log_file_size=16M",
            "innodb_flush_log_at_trx_commit=0",
            "innodb_flush_method=nosync",
            "innodb_doublewrite=0",
            "innodb_use_native_aio=0",
            "innodb_lock_wait_timeout=900",
            # On by default from 11.6, and nothing that slurmdbd knows of; "loose": older ones do not know it.
            "loose-innodb-snapshot-isolation=OFF",
            "key_buffer_size=1M",
            "aria_pagecache_buffer_size=8M",
            "aria_log_file_size=8M",
            "",
        ]
    )


def render(spec: SandboxSpec, at: Layout, release: tuple[int, int]) -> dict[str, tuple[str, int]]:
    """Every configuration file of a sandbox: name -> (text, mode). release: (22, 5) for Slurm 22.05."""
    files = {
        "slurm.conf": (slurm_conf(spec, at), 0o644),
        "gres.conf": (gres_conf(spec, at), 0o644),
        **{name: (text, 0o755) for name, text in spec.extra_files.items()},
    }
    if spec.with_accounting:
        files["slurmdbd.conf"] = (slurmdbd_conf(at), 0o600)
        files["my.cnf"] = (my_cnf(at), 0o644)
    if release >= (23, 2):
        # Newer slurmd wants a cgroup plugin even when nothing uses it; 22.05 does not know this word.
        files["cgroup.conf"] = ("CgroupPlugin=disabled\n", 0o644)
    return files
