"""Which candidates share a batch, in which bucket and lane each stands, and in which order."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from comicgen.numerics import Numerics
from comicgen.plan.batch import Batch, Bucket, Candidate, ControlWindow, GraphKey
from comicgen.plan.figures import Terms
from comicgen.plan.packing import pack
from comicgen.plan.prices import LADDER, Work
from comicgen.sizes import Size
from comicgen.storyboard import Model, Panel, Storyboard, in_order

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


def assign(candidates: Sequence[Candidate], terms: Terms) -> list[Batch]:
    """Batches for all these candidates, each of at most `terms.lanes`, in the order of drawing.

    What has the folder's numerics is drawn first, so that no more than one engine is needed at a
    time. Then larger sizes come first, and in one size what has a ControlNet, as their graphs need
    the most memory. ControlNets and LoRA sets then change as seldom as can be; where these are
    the same, larger batches come first, then the order of the story decides.
    """
    assert terms.lanes in LADDER
    groups = {candidate.panel.id: group(candidate.panel) for candidate in candidates}
    members: dict[Group, list[Candidate]] = {}
    for candidate in candidates:
        members.setdefault(groups[candidate.panel.id], []).append(candidate)
    work = [_work(key, each[0].panel, len(each)) for key, each in members.items()]
    made: list[tuple[Group, Batch]] = []
    for (key, each), sizes in zip(members.items(), pack(work, terms), strict=True):
        left, own, panel = iter(each), terms.of(key.size), each[0].panel
        for size in sizes:
            filled = list(islice(left, size))
            empty = [None] * (size - len(filled))
            made.append((key, _batch(key, panel, [*filled, *empty], own)))
    return [batch for _, batch in sorted(made, key=_order(list(members), terms))]


def every_graph(storyboard: Storyboard, lanes: int) -> dict[GraphKey, Model | None]:
    """The graphs that this storyboard could replay with up to so many lanes; with ControlNets.

    Those that need the most memory come first.
    """
    found: dict[GraphKey, Model | None] = {}
    for panel in storyboard.panels:
        control = panel.control
        models = {control.model.digest: control.model} if control else {}
        for size in LADDER[: LADDER.index(lanes) + 1]:
            batch = _batch(group(panel), panel, [None] * size, "plain")
            found |= {graph: models.get(graph.controlnet or "") for graph in batch.calls}

    def order(graph: GraphKey) -> tuple[int, ...]:
        size, bucket = graph.bucket.size, graph.bucket
        return -size.width * size.height, -size.width, -bucket.controls, -bucket.batch

    return {graph: found[graph] for graph in sorted(found, key=order)}


def every_work(storyboard: Storyboard) -> dict[Size, list[Work]]:
    """All work of a storyboard by its size, without what was asked for beyond its counts."""
    groups: dict[Group, list[Panel]] = {}
    for panel in storyboard.panels:
        groups.setdefault(group(panel), []).append(panel)
    found: dict[Size, list[Work]] = {}
    for key, panels in groups.items():
        count = sum(panel.candidates for panel in panels)
        found.setdefault(key.size, []).append(_work(key, panels[0], count))
    return found


def _work(key: Group, panel: Panel, count: int) -> Work:
    return Work(count, tuple(_batch(key, panel, [None], "plain").calls.items()))


def _order(keys: Sequence[Group], terms: Terms) -> Callable[[tuple[Group, Batch]], tuple[int, ...]]:
    controls = _ranks([*(key.control[0] for key in keys if key.control), None])
    loras = _ranks(key.loras for key in keys)
    groups = _ranks(keys)

    def order(item: tuple[Group, Batch]) -> tuple[int, ...]:
        key, batch = item
        width, height = key.size.width, key.size.height
        control = controls[key.control and key.control[0]]
        other, lanes = batch.numerics != terms.numerics, batch.bucket.batch
        return other, -width * height, -width, control, loras[key.loras], -lanes, groups[key]

    return order


def _ranks(keys: Iterable[Hashable]) -> dict[Hashable, int]:
    return {key: rank for rank, key in enumerate(dict.fromkeys(keys))}


def _batch(
    key: Group, panel: Panel, lanes: Sequence[Candidate | None], numerics: Numerics
) -> Batch:
    """A batch of the group that has this panel."""
    control = panel.control
    return Batch(
        bucket=Bucket(len(lanes), key.size, _CHUNKS, int(control is not None), key.guided),
        loras=in_order(panel.loras),
        sampler=key.sampler,
        steps=key.steps,
        control=ControlWindow(control.model, control.start, control.end) if control else None,
        lanes=tuple(lanes),
        numerics=numerics,
    )
