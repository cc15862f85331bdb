"""Resizes of what the job began with: shrink (`scontrol update JobId NodeList=<kept>`), release of a heterogeneous
component (`scancel BASE+k`, or fewer nodes by its own id, while the job runs on), and expand. Pure.

The batch host stays: Slurm refuses to take it. Limit: whole nodes only, and what is given up never comes back.
"""

from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.messages import Resize

from ..capacity.shrink_options import DropRule
from ..slurm.site import Site
from .base import ChosenWay, Mechanism, ResizableJob
from .settings import ResizeSettings


class ComponentRelease(Mechanism):
    """A component keeps its first node, or goes whole: Slurm refuses to take that node alone."""

    name = "component"
    drops = DropRule("component", price=1_000, first_node_stays=True, whole=True)

    def fits(self, job: ResizableJob, site: Site) -> str:
        if all(piece.kind != "component" for piece in job.pieces):
            return "it is no heterogeneous job"
        return super().fits(job, site)


class ShrinkInPlace(Mechanism):
    name = "shrink"
    drops = DropRule("base", price=1_000_000, first_node_stays=True)
    asks = (EventKind.SHRINK,)

    def carries(self, resize: Resize) -> bool:
        return bool(resize.keep) and not resize.add


class ExpandInPlace(Mechanism):
    """`--dependency=expand`: a request may name it, and no job that holds GPUs can use it."""

    name = "expand"

    def fits(self, job: ResizableJob, site: Site) -> str:
        return "Slurm refuses it for a job that holds GPUs"

    def why_not(self, job: ResizableJob, site: Site, chosen: ChosenWay, settings: ResizeSettings) -> str:
        return self.fits(job, site)
