"""What must be drawn, in which order and lane, and why. Pure: no torch, no disk."""

from comicgen.plan.batch import Batch, Bucket, Candidate, ControlWindow
from comicgen.plan.past import Memory, Past, Reseed

__all__ = ["Batch", "Bucket", "Candidate", "ControlWindow", "Memory", "Past", "Reseed"]
