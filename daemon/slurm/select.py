"""Which client talks to Slurm: pyslurm where a build for the installed Slurm is found, else Slurm's commands."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from slurm_elastic.protocol.errors import ConfigError

from .commands import CommandClient
from .pyslurm.client import PySlurmClient, PyslurmUnusable


class Chosen(NamedTuple):
    """A client, and why it is this one, in words."""

    client: CommandClient
    why: str


def choose(wanted: str, slurm_conf: str = "") -> Chosen:
    """wanted: "auto", "commands", or "pyslurm", which raises ConfigError where pyslurm cannot be used."""
    if wanted == "commands":
        return Chosen(CommandClient(slurm_conf), 'Slurm\'s commands, as slurm_client = "commands" says')
    try:
        if importlib.util.find_spec("pyslurm") is None:
            raise PyslurmUnusable("pyslurm is not installed beside selasticd")
        client = PySlurmClient(slurm_conf)
    except PyslurmUnusable as error:
        if wanted == "pyslurm":
            raise ConfigError(f'slurm_client = "pyslurm": {error}') from None
        return Chosen(CommandClient(slurm_conf), f"Slurm's commands: {error}")
    return Chosen(client, client.about())
