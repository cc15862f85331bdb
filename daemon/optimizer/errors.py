"""What the optimizer refuses. Every message names the job, the value and what would be accepted.

ElasticError
├── InfeasiblePlan      the smallest choices of all jobs together need more than there is
├── PlanInputError      a value no plan can be made from: NaN, a negative size, an empty table
└── PolicyFailed        a policy that gave no answer, or one that is no plan: another policy has to plan
"""

from slurm_elastic.protocol.errors import ElasticError


class InfeasiblePlan(ElasticError):
    """Not every job can have its smallest choice; `jobs` are the positions of those left over, by arrival."""

    def __init__(self, message: str, jobs: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.jobs = jobs


class PlanInputError(ElasticError):
    """An input that is not a number, not a size, or empty where at least one choice is needed."""


class PolicyFailed(ElasticError):
    """A policy raised, took too long, or gave what is no utility or no plan."""
