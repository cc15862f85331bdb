"""Release of a heterogeneous component: `scancel BASE+k`, or fewer nodes by its own id, while the job runs on. Pure.

A component keeps its first node, or goes whole: Slurm refuses to take that node alone. Limit: it never comes back.
"""

from ..capacity.shrink_options import DropRule
from ..slurm.site import Site
from .base import Mechanism, ResizableJob


class ComponentRelease(Mechanism):
    name = "component"
    drops = DropRule("component", price=1_000, first_node_stays=True, whole=True)

    def fits(self, job: ResizableJob, site: Site) -> str:
        if all(piece.kind != "component" for piece in job.pieces):
            return "it is no heterogeneous job"
        return super().fits(job, site)
