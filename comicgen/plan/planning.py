"""The plan: every candidate drawn, kept or left waiting, each with its reason."""

from dataclasses import dataclass
from typing import Any, Literal

from comicgen.plan.batch import Batch, Candidate, ControlWindow
from comicgen.plan.candidates import every_candidate
from comicgen.plan.costs import Costs
from comicgen.plan.lanes import assign, group, only
from comicgen.plan.past import Memory
from comicgen.plan.reason import Reason, decide
from comicgen.plan.selection import EVERYTHING, Selection, select
from comicgen.storyboard import Storyboard


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one candidate, and why."""

    candidate: Candidate
    reason: Reason

    def to_json(self, state: Literal["draw", "kept", "waiting"]) -> dict[str, Any]:
        """The candidate as plain JSON."""
        candidate, reason = self.candidate, self.reason
        return {
            "name": candidate.name,
            "panel": candidate.panel.id,
            "number": candidate.number,
            "state": state,
            "reason": {"kind": reason.kind, "detail": reason.detail},
            "seed": candidate.seed,
            "fingerprint": candidate.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command would do.

    `batches` hold the candidates of `drawn`, in the order of drawing. `waiting` candidates need
    drawing too but were not selected. `orphans` are names that the output folder remembers and
    the storyboard no longer has; `costs` is what its pictures cost.
    """

    batches: tuple[Batch, ...]
    drawn: tuple[Decision, ...]
    kept: tuple[Decision, ...]
    waiting: tuple[Decision, ...]
    orphans: tuple[str, ...]
    costs: Costs

    @property
    def pictures(self) -> int:
        """How many pictures are drawn."""
        return len(self.drawn)

    @property
    def captures(self) -> int:
        """How many different graphs the batches replay."""
        return len({key for batch in self.batches for key in batch.keys})

    @property
    def padded(self) -> int:
        """How many lanes are computed for nothing."""
        return sum(batch.padded for batch in self.batches)

    @property
    def groups(self) -> int:
        """How many different settings the batches have that cannot share one."""
        return len({group(batch.candidates[0].panel) for batch in self.batches})

    @property
    def seconds(self) -> float | None:
        """About how long drawing takes; None when nothing like it was ever measured."""
        each = [self.costs.of_batch(batch) for batch in self.batches]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if len(known) == len(each) else None

    def to_json(self) -> dict[str, Any]:
        """Totals, batches in the order of drawing, and every candidate, as plain JSON."""
        return {
            "pictures": self.pictures,
            "captures": self.captures,
            "padded": self.padded,
            "groups": self.groups,
            "seconds": self.seconds,
            "batches": [_batch(batch) for batch in self.batches],
            "candidates": [
                *(each.to_json("draw") for each in self.drawn),
                *(each.to_json("kept") for each in self.kept),
                *(each.to_json("waiting") for each in self.waiting),
            ],
            "orphans": list(self.orphans),
        }


def plan(
    storyboard: Storyboard,
    memory: Memory,
    selection: Selection = EVERYTHING,
    *,
    batch: int = 1,
    captured: bool = True,
    environment: str = "",
) -> Plan:
    """Decide about every candidate and arrange those to be drawn in batches of at most `batch`.

    Bucket and lane of a candidate follow from the whole storyboard and `batch`, which is one of
    `LADDER`, never from what is done or selected. `captured` False is for a device that has no
    graphs, where no bucket costs anything before it draws. `environment` is the label of what
    would draw now; "" does not compare it.

    Raises:
        CommandError: the selection names a panel or candidate that is not there.
    """
    candidates = every_candidate(storyboard, memory)
    selected = {chosen.name for chosen in select(selection, storyboard, candidates, memory)}
    decisions = {
        each.name: Decision(each, decide(each, memory, environment)) for each in candidates
    }
    draw = {name: decision for name, decision in decisions.items() if decision.reason.draw}
    drawn = draw.keys() & selected
    return Plan(
        batches=only(assign(candidates, batch, captured), drawn),
        drawn=tuple(decision for name, decision in draw.items() if name in drawn),
        kept=tuple(each for each in decisions.values() if not each.reason.draw),
        waiting=tuple(decision for name, decision in draw.items() if name not in drawn),
        orphans=tuple(name for name in memory.candidates if name not in decisions),
        costs=Costs.learned(memory, environment),
    )


def _batch(batch: Batch) -> dict[str, Any]:
    bucket, control = batch.bucket, batch.control
    return {
        "bucket": str(bucket),
        "lanes": [lane and lane.name for lane in batch.lanes],
        "size": str(bucket.size),
        "guided": bucket.guided,
        "sampler": batch.sampler,
        "steps": batch.steps,
        "loras": [{"file": lora.written, "weight": lora.weight} for lora in batch.loras],
        "control": _control(control) if control else None,
    }


def _control(control: ControlWindow) -> dict[str, Any]:
    return {"model": control.model.written, "start": control.start, "end": control.end}
