"""Which candidates share a batch, in which bucket and lane each stands, and in which order."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from comicgen.plan.batch import Batch, Bucket, Candidate, ControlWindow, GraphKey
from comicgen.plan.packing import LADDER, Work, pack
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


def assign(candidates: Sequence[Candidate], lanes: int, captured: bool = True) -> list[Batch]:
    """Batches for all these candidates, each of at most `lanes`, in the order of drawing.

    `captured` False is for a device without graphs, where no number of lanes costs more at first.

    Where bits depend on bucket and lane, they repeat only if the candidates are the whole
    storyboard's: leave out with `only` what is not to be drawn now. Candidates beyond a panel's
    own count get batches of their own, packed after the others, so that asking for more moves
    none of the storyboard's.

    Larger sizes are drawn first, and in one size what has a ControlNet, as their graphs need the
    most memory. ControlNets and LoRA sets then change as seldom as can be; where these are the
    same, larger batches come first, then the order of the story decides.
    """
    assert lanes in LADDER
    groups = {candidate.panel.id: group(candidate.panel) for candidate in candidates}
    own: dict[Group, list[Candidate]] = {}
    beyond: dict[Group, list[Candidate]] = {}
    for candidate in candidates:
        members = own if candidate.number <= candidate.panel.candidates else beyond
        members.setdefault(groups[candidate.panel.id], []).append(candidate)
    paid = set() if captured else _every_key([*own.items(), *beyond.items()], lanes)
    made = _batches(own, lanes, paid)
    if beyond:
        paid |= {key for _, batch in made for key in batch.keys}
        made += _batches(beyond, lanes, paid)
    return [batch for _, batch in sorted(made, key=_order([*own, *beyond]))]


def _batches(
    members: Mapping[Group, Sequence[Candidate]], lanes: int, paid: Collection[GraphKey]
) -> list[tuple[Group, Batch]]:
    """The batches of each group, packed together for the least time."""
    work = [
        Work(len(each), key.steps, _batch(key, each[:1], 1).keys) for key, each in members.items()
    ]
    made = []
    for (key, each), sizes in zip(members.items(), pack(work, lanes, paid), strict=True):
        left = iter(each)
        made += [(key, _batch(key, list(islice(left, size)), size)) for size in sizes]
    return made


def _every_key(members: Iterable[tuple[Group, Sequence[Candidate]]], lanes: int) -> set[GraphKey]:
    """The graphs that these could replay with any number of lanes up to `lanes`."""
    sizes = [size for size in LADDER if size <= lanes]
    return {
        graph
        for key, each in members
        for size in sizes
        for graph in _batch(key, each[:1], size).keys
    }


def _order(keys: Sequence[Group]) -> Callable[[tuple[Group, Batch]], tuple[int, ...]]:
    controls = _ranks([*(key.control[0] for key in keys if key.control), None])
    loras = _ranks(key.loras for key in keys)
    groups = _ranks(keys)

    def order(item: tuple[Group, Batch]) -> tuple[int, ...]:
        key, batch = item
        width, height = key.size.width, key.size.height
        control = controls[key.control and key.control[0]]
        lanes = batch.bucket.batch
        return -width * height, -width, control, loras[key.loras], -lanes, groups[key]

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


def _batch(key: Group, candidates: Sequence[Candidate], lanes: int) -> Batch:
    panel = candidates[0].panel
    control = panel.control
    return Batch(
        bucket=Bucket(lanes, key.size, _CHUNKS, int(control is not None), key.guided),
        loras=in_order(panel.loras),
        sampler=key.sampler,
        steps=key.steps,
        control=ControlWindow(control.model, control.start, control.end) if control else None,
        lanes=(*candidates, *[None] * (lanes - len(candidates))),
    )
