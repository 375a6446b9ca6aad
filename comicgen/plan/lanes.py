"""Which candidates share a batch, in which bucket and lane each stands, and in which order."""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from comicgen.plan.batch import Batch, Bucket, Candidate, ControlWindow
from comicgen.sizes import Size
from comicgen.storyboard import Panel, in_order

_CHUNKS = 1  # a prompt that needs more is refused when the storyboard is read


class Group(NamedTuple):
    """What all candidates of a batch have in common; files are told apart by their digests."""

    size: Size
    control: tuple[str, float, float] | None
    loras: tuple[tuple[str, float], ...]
    sampler: str
    steps: int
    guided: bool


def group(panel: Panel) -> Group:
    """The group in which the candidates of a panel are drawn."""
    control = panel.control
    return Group(
        panel.size,
        (control.model.digest, control.start, control.end) if control else None,
        tuple((lora.digest, lora.weight) for lora in in_order(panel.loras)),
        panel.sampler,
        panel.steps,
        panel.guidance > 1,
    )


def assign(candidates: Sequence[Candidate], lanes: int) -> list[Batch]:
    """Batches for all these candidates, each of at most `lanes`, in the order of drawing.

    Where bits depend on bucket and lane, they repeat only if the candidates are the whole
    storyboard's: leave out with `only` what is not to be drawn now. Candidates beyond a panel's
    own count get batches of their own, so that asking for more moves no other.
    """
    assert lanes >= 1
    groups = {candidate.panel.id: group(candidate.panel) for candidate in candidates}
    members: dict[tuple[Group, bool], list[Candidate]] = {}
    for candidate in candidates:
        beyond = candidate.number > candidate.panel.candidates
        members.setdefault((groups[candidate.panel.id], beyond), []).append(candidate)
    return [
        _batch(key, together[start : start + lanes])
        for (key, _), together in sorted(members.items(), key=_order(members))
        for start in range(0, len(together), lanes)
    ]


def _order(members: Iterable[tuple[Group, bool]]) -> Callable[[Any], tuple[int, ...]]:
    """Largest first; then ControlNets and LoRA sets change as seldom as can be."""
    keys = [key for key, _ in members]
    controls = _ranks(key.control and key.control[0] for key in keys)
    loras = _ranks(key.loras for key in keys)
    groups = _ranks(keys)

    def order(item: tuple[tuple[Group, bool], object]) -> tuple[int, ...]:
        (key, beyond), _ = item
        area = key.size.width * key.size.height
        control = controls[key.control and key.control[0]]
        return -area, -key.size.width, control, loras[key.loras], groups[key], beyond

    return order


def only(batches: Iterable[Batch], names: Collection[str]) -> tuple[Batch, ...]:
    """The batches in which something is to be drawn, with every other lane left empty."""
    masked = (
        replace(
            batch,
            lanes=tuple(lane if lane and lane.name in names else None for lane in batch.lanes),
        )
        for batch in batches
    )
    return tuple(batch for batch in masked if batch.candidates)


def _ranks(keys: Iterable[Hashable]) -> dict[Hashable, int]:
    return {key: rank for rank, key in enumerate(dict.fromkeys(keys))}


def _batch(key: Group, candidates: Sequence[Candidate]) -> Batch:
    panel = candidates[0].panel
    control = panel.control
    return Batch(
        bucket=Bucket(len(candidates), key.size, _CHUNKS, int(control is not None), key.guided),
        loras=in_order(panel.loras),
        sampler=key.sampler,
        steps=key.steps,
        control=ControlWindow(control.model, control.start, control.end) if control else None,
        lanes=tuple(candidates),
    )
