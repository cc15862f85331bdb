"""The commands that the daemon's distribution adds to `selastic`."""

from slurm_elastic.client.parser import Command

_HERE = "slurm_elastic.daemon.cli.commands."
COMMANDS = (
    Command("probe", "slurm_elastic.daemon.probe.command", "try this Slurm for real, with a few jobs of a minute"),
    Command("simulate", _HERE + "simulate", "replay a trace of jobs through the same policies"),
    Command("sandbox", _HERE + "sandbox", "a private real Slurm to try everything on"),
    Command("config", _HERE + "config", "show or check the daemon's settings"),
)
