"""The plan: every candidate drawn, kept or left waiting, each with its reason."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from comicgen.numerics import Numerics
from comicgen.plan.batch import Batch, Candidate, ControlWindow, GraphKey
from comicgen.plan.candidates import every_candidate
from comicgen.plan.choosing import (
    Choice,
    choices,
    memory_of,
    numerics_by_size,
    seconds,
    without,
)
from comicgen.plan.costs import Costs, Disk
from comicgen.plan.figures import Figures, Kernels, Terms
from comicgen.plan.lanes import assign, group
from comicgen.plan.past import Memory
from comicgen.plan.reason import Reason, decide
from comicgen.plan.selection import EVERYTHING, Selection, select
from comicgen.sizes import Size
from comicgen.storyboard import Storyboard

_PLAIN = Kernels()


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
    the storyboard no longer has. `costs` is what pictures cost, and the model `opening` takes:
    `calibrated` by measurements of this machine, or learned from the folder's pictures.
    `settled` are the sizes whose numerics the folder remembers.
    """

    batches: tuple[Batch, ...]
    drawn: tuple[Decision, ...]
    kept: tuple[Decision, ...]
    waiting: tuple[Decision, ...]
    orphans: tuple[str, ...]
    costs: Costs
    terms: Terms = field(default_factory=Terms)
    disk: Disk = field(default_factory=lambda: Disk(0, at_most=False))
    opening: float = 0.0
    settled: frozenset[Size] = frozenset()
    calibrated: bool = False

    @property
    def pictures(self) -> int:
        """How many pictures are drawn."""
        return len(self.drawn)

    @property
    def captures(self) -> int:
        """How many different graphs the batches replay."""
        used = {key for batch in self.batches for key in batch.keys}
        return len(used - self.without) if self.terms.captured else 0

    @property
    def without(self) -> frozenset[GraphKey]:
        """The graphs that are not captured, as they would not pay."""
        return without(self.batches, self.terms)

    @property
    def unsettled(self) -> Mapping[Size, Numerics]:
        """The sizes whose numerics must be remembered before their first picture is drawn."""
        sizes = {batch.bucket.size for batch in self.batches} - self.settled
        return {size: self.terms.sizes[size] for size in sorted(sizes & self.terms.sizes.keys())}

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How each bucket is drawn, in the order of drawing."""
        return choices(self.batches, self.terms)

    @property
    def memory(self) -> int | None:
        """Bytes of GPU memory that drawing takes beyond the weights; None if not measured."""
        return memory_of(self.batches, self.terms)

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
        return self.opening + sum(known) if len(known) == len(each) else None

    def to_json(self) -> dict[str, Any]:
        """Totals, batches in the order of drawing, and every candidate, as plain JSON."""
        return {
            "pictures": self.pictures,
            "captures": self.captures,
            "padded": self.padded,
            "groups": self.groups,
            "seconds": self.seconds,
            "calibrated": self.calibrated,
            "numerics": self.terms.numerics,
            "choices": [choice.to_json() for choice in self.choices],
            "disk": asdict(self.disk),
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
    insisted: bool = False,
    environment: str = "",
    kernels: Kernels = _PLAIN,
) -> Plan:
    """Decide about every candidate and arrange those to be drawn in batches of at most `batch`.

    `batch` is one of `LADDER`. `captured` False is for drawing without graphs, where no bucket
    costs anything before it draws; `insisted` captures those that do not pay too. `environment` is
    the label of what would draw now; "" does not compare it.

    Raises:
        CommandError: the selection names a panel or candidate that is not there.
    """
    assert memory.numerics in (None, kernels.numerics)
    terms = Terms(batch, captured, kernels.numerics, {}, kernels.figures, insisted)
    terms = replace(terms, sizes=numerics_by_size(storyboard, terms, memory.sizes))
    labels = {"plain": kernels.plain_environment, kernels.numerics: environment}
    candidates = every_candidate(storyboard, memory)
    selected = {chosen.name for chosen in select(selection, storyboard, candidates, memory)}
    decisions = {
        each.name: Decision(each, decide(each, memory, labels[terms.of(each.panel.size)]))
        for each in candidates
    }
    draw = {name: decision for name, decision in decisions.items() if decision.reason.draw}
    drawn = tuple(decision for name, decision in draw.items() if name in selected)
    batches = tuple(assign([each.candidate for each in drawn], terms))
    opening = _opening(batches, terms.figures)
    measured = seconds(batches, terms) if batches and opening is not None else None
    learned = Costs.learned(memory, tuple(filter(None, labels.values())))
    return Plan(
        batches=batches,
        drawn=drawn,
        kept=tuple(each for each in decisions.values() if not each.reason.draw),
        waiting=tuple(decision for name, decision in draw.items() if name not in selected),
        orphans=tuple(name for name in memory.candidates if name not in decisions),
        costs=Costs.calibrated(batches, measured) if measured else learned,
        terms=terms,
        disk=Disk.of((each.candidate for each in drawn), memory),
        opening=opening if measured and opening else 0.0,
        settled=frozenset(memory.sizes),
        calibrated=measured is not None,
    )


def _opening(batches: tuple[Batch, ...], figures: Figures) -> float | None:
    """What loading the model takes, once for each numerics; None where that was not measured."""
    each = [figures.opening.get(kind) for kind in {batch.numerics for batch in batches}]
    known = [seconds for seconds in each if seconds is not None]
    return sum(known) if len(known) == len(each) else None


def _batch(batch: Batch) -> dict[str, Any]:
    bucket, control = batch.bucket, batch.control
    return {
        "bucket": str(bucket),
        "lanes": [lane and lane.name for lane in batch.lanes],
        "size": str(bucket.size),
        "guided": bucket.guided,
        "numerics": batch.numerics,
        "sampler": batch.sampler,
        "steps": batch.steps,
        "loras": [{"file": lora.written, "weight": lora.weight} for lora in batch.loras],
        "control": _control(control) if control else None,
    }


def _control(control: ControlWindow) -> dict[str, Any]:
    return {"model": control.model.written, "start": control.start, "end": control.end}
