"""How Slurm is found and asked."""

from dataclasses import dataclass
from typing import ClassVar

from ..config.fields import PATH, number, text


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    table: ClassVar[str] = "slurm"

    slurm_conf: str = text("", *PATH)
    """Path of slurm.conf. Empty: the environment's SLURM_CONF, or Slurm's own default."""

    munge_socket: str = text("", *PATH)
    """Socket of munged. Empty: the one named by AuthInfo in slurm.conf, or MUNGE's own default."""

    site_interval_s: float = number(60.0, 1, 86400)
    """How often Slurm's limits of accounts and QOS, its shares, its reservations and its topology are read: up to six
    more commands."""
