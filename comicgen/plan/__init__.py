"""What must be drawn, in which order and lane, and why. Pure: no torch, no disk."""

from comicgen.plan.batch import Batch, Bucket, Candidate, ControlWindow, GraphKey
from comicgen.plan.candidates import RECIPE, every_candidate, fingerprint
from comicgen.plan.costs import Costs, Eta
from comicgen.plan.packing import LADDER
from comicgen.plan.past import Kind, Memory, Past, Request, Reseed
from comicgen.plan.planning import Decision, Plan, plan
from comicgen.plan.reason import Reason, decide
from comicgen.plan.requests import request
from comicgen.plan.selection import EVERYTHING, Selection

__all__ = [
    "EVERYTHING",
    "LADDER",
    "RECIPE",
    "Batch",
    "Bucket",
    "Candidate",
    "ControlWindow",
    "Costs",
    "Decision",
    "Eta",
    "GraphKey",
    "Kind",
    "Memory",
    "Past",
    "Plan",
    "Reason",
    "Request",
    "Reseed",
    "Selection",
    "decide",
    "every_candidate",
    "fingerprint",
    "plan",
    "request",
]
