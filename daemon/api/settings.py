"""What the daemon listens on, and whom it answers how much."""

from dataclasses import dataclass
from typing import ClassVar

from ..config.fields import NAMES, PATH, Modes, flag, number, setting, text, texts
from ..config.tls import TlsSettings
from ..config.user_mode import AUTO
from ..slurm.settings import SlurmSettings


@dataclass(frozen=True, kw_only=True)
class ServerSettings(TlsSettings, SlurmSettings, Modes):
    table: ClassVar[str] = "server"

    listen: str = text("127.0.0.1:6850", r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}", "HOST:PORT, or [IPv6]:PORT")
    """Address that the jobs and the command line reach. Compute nodes must reach it too: give the address of the
    cluster's internal network. `auto:6850` finds the address of this host from which Slurm's nodes are reached. Port 0
    takes a free one. client.json in state_dir has the result."""

    url: str = text("", r"|https?://\S+", "a URL such as http://head.cluster:6850, or nothing")
    """Where clients find the daemon, as written to client.json. Empty: made from `listen`."""

    listen_socket: str = text("", *PATH)
    """Unix socket for callers on this host, such as /run/slurm-elastic/selasticd.sock. The kernel says who they are, so
    they need no MUNGE. Empty: none."""

    accept_tokens: bool = setting(True, "true or false", flag)
    """Whether jobs whose slurm-elastic is 0.2 may speak by a token, which whoever hears it can use until the daemon is
    started again: only jobs that registered before the daemon was upgraded, or that come by TLS or the Unix socket. The
    next release takes none."""

    admins: tuple[str, ...] = texts(*NAMES)
    """Users (names or uids) who see and pin everyone's jobs, beside root, Slurm's own user, and whoever is Operator or
    Administrator in Slurm."""

    report_interval_s: float = number(5.0, 0.1, 600)
    """Time between two throughput reports of one job; after a dozen of one world and batch six times as long, up to 30
    s. Four in this time are taken, after a thousand at once; more is refused (429)."""

    requests_per_s: float = number(10.0, 0.1, 10000)
    """Most requests per second that one job may make, over ten seconds; more is refused (429). A user, who may have
    many jobs, ten times as many."""

    @property
    def address(self) -> tuple[str | None, int]:
        """Host and port of `listen`; the host None when it is to be found."""
        host, _, port = self.listen.rpartition(":")
        return None if host == AUTO else host.strip("[]"), int(port)
