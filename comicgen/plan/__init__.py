"""What must be drawn, in which order and lane, and why. Pure: no torch, no disk."""

from comicgen.plan.batch import Batch, Bucket, Candidate, ControlWindow, GraphKey
from comicgen.plan.candidates import RECIPE, every_candidate, fingerprint
from comicgen.plan.choosing import Choice, numerics_for
from comicgen.plan.costs import Costs, Disk, Eta
from comicgen.plan.figures import EAGER_STEPS, Figure, Figures, Kernels, Terms
from comicgen.plan.lanes import every_graph
from comicgen.plan.past import Kind, Memory, Past, Request, Reseed
from comicgen.plan.planning import Decision, Plan, plan
from comicgen.plan.prices import LADDER
from comicgen.plan.reason import Reason, decide
from comicgen.plan.requests import request
from comicgen.plan.selection import EVERYTHING, Selection

__all__ = [
    "EAGER_STEPS",
    "EVERYTHING",
    "LADDER",
    "RECIPE",
    "Batch",
    "Bucket",
    "Candidate",
    "Choice",
    "ControlWindow",
    "Costs",
    "Decision",
    "Disk",
    "Eta",
    "Figure",
    "Figures",
    "GraphKey",
    "Kernels",
    "Kind",
    "Memory",
    "Past",
    "Plan",
    "Reason",
    "Request",
    "Reseed",
    "Selection",
    "Terms",
    "decide",
    "every_candidate",
    "every_graph",
    "fingerprint",
    "numerics_for",
    "plan",
    "request",
]
