"""The files of a private Slurm, made of those in templates/ by what is asked. Nothing here looks at the machine.

Written for Slurm 22.05 and kept to keys that newer releases know too; what one of them refuses is left out there.
"""

from dataclasses import dataclass, field
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

TEMPLATES = Path(__file__).parent / "templates"
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


def _filled(name: str, at: Layout, **values: object) -> str:
    return (TEMPLATES / name).read_text().format(at=at, **values)


def slurm_conf(spec: SandboxSpec, at: Layout) -> str:
    nodes = "n1" if spec.nodes == 1 else f"n[1-{spec.nodes}]"
    last_port = at.first_node_port + spec.nodes - 1
    further = ["AccountingStorageType=accounting_storage/none"]
    if spec.with_accounting:
        counted = [f"AccountingStorageTRES=gres/gpu,gres/gpu:{spec.gpu_type}"] if spec.gpus_per_node else []
        further = [_filled("accounting.conf", at), *counted]
    conf = _filled(
        "slurm.conf",
        at,
        cluster=CLUSTER,
        spec=spec,
        nodes=nodes,
        ports=str(last_port) if spec.nodes == 1 else f"[{at.first_node_port}-{last_port}]",
        cores=spec.cpus_per_node // spec.threads_per_core,
        gres=f" Gres=gpu:{spec.gpu_type}:{spec.gpus_per_node}" if spec.gpus_per_node else "",
        mem_per_cpu=max(1, spec.mem_mb // spec.cpus_per_node),
        further="\n".join([*further, *(["GresTypes=gpu"] if spec.gpus_per_node else [])]),
    )
    return "\n".join([conf.rstrip("\n"), *spec.extra_slurm_conf]) + "\n"


def gres_conf(spec: SandboxSpec, at: Layout) -> str:
    """gres.conf: without File= Slurm would not set CUDA_VISIBLE_DEVICES."""
    if not spec.gpus_per_node:
        return "# no GPUs\n"
    return "".join(f"Name=gpu Type={spec.gpu_type} File={file}\n" for file in at.gpu_files)


def render(spec: SandboxSpec, at: Layout, release: tuple[int, int]) -> dict[str, tuple[str, int]]:
    """Every configuration file of a sandbox: name -> (text, mode). release: (22, 5) for Slurm 22.05."""
    files = {
        "slurm.conf": (slurm_conf(spec, at), 0o644),
        "gres.conf": (gres_conf(spec, at), 0o644),
        **{name: (text, 0o755) for name, text in spec.extra_files.items()},
    }
    if spec.with_accounting:
        files["slurmdbd.conf"] = (_filled("slurmdbd.conf", at), 0o600)  # slurmdbd insists on that mode
        files["my.cnf"] = (_filled("my.cnf", at), 0o644)
    if release >= (23, 2):
        # Newer slurmd wants a cgroup plugin even when nothing uses it; 22.05 does not know this word.
        files["cgroup.conf"] = ("CgroupPlugin=disabled\n", 0o644)
    return files
