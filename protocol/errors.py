"""Every error this project raises on purpose.

A message is one sentence: the field, the value, what is accepted, and what to do.
"""


class ElasticError(Exception):
    """Root of the tree; str(error) is fit to be shown to a user as it is."""


class RequestError(ElasticError):
    """An elastic request that cannot be read or met."""


class TrainingError(ElasticError):
    """A training script that uses the shim wrongly, or a world that did not form in time."""


class OtherRankFailed(TrainingError):
    """What another rank did has failed, and may not again."""


class ConfigError(ElasticError):
    """A setting, an option or an environment variable with a value that is not accepted."""


class NotAllowed(ElasticError):
    """The caller may not do that."""


class TooOften(ElasticError):
    """The caller may do that, and has done it too often just now."""


class NotFound(ElasticError):
    """There is no such job, plan or record."""


class DaemonUnreachable(ElasticError):
    """selasticd did not answer."""


class StoreError(ElasticError):
    """The database refuses or cannot be reached."""


class LeaseLost(StoreError):
    """Another daemon holds the database's lease, or this one cannot show that it still does."""


class SandboxError(ElasticError):
    """A private Slurm that did not start."""


class SlurmError(ElasticError):
    """Slurm did not do what was asked."""


class SlurmRefused(SlurmError):
    """Slurm understood and said no; the same call will be refused again."""


class SlurmUnreachable(SlurmError):
    """slurmctld did not answer; nothing is known about the effect of the call."""


class SlurmUnparsable(SlurmError):
    """An answer in a form this code does not know; nothing may be concluded from it."""
