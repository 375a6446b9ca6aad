"""Which candidates share a batch, in which bucket and lane each stands, and in which order."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from comicgen.numerics import Numerics
from comicgen.plan.batch import Batch, Bucket, Candidate, ControlWindow, GraphKey
from comicgen.plan.candidates import every_candidate
from comicgen.plan.figures import Terms
from comicgen.plan.packing import pack
from comicgen.plan.past import Memory
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
    work = [_work(key, each) for key, each in members.items()]
    made = []
    for (key, each), sizes in zip(members.items(), pack(work, terms), strict=True):
        left, own = iter(each), terms.of(key.size)
        made += [(key, _batch(key, list(islice(left, size)), size, own)) for size in sizes]
    return [batch for _, batch in sorted(made, key=_order(list(members), terms))]


def every_graph(storyboard: Storyboard, lanes: int) -> dict[GraphKey, Model | None]:
    """The graphs that this storyboard could replay with up to so many lanes; with ControlNets.

    Those that need the most memory come first.
    """
    found: dict[GraphKey, Model | None] = {}
    for candidate in every_candidate(storyboard, Memory()):
        key = group(candidate.panel)
        for size in LADDER[: LADDER.index(lanes) + 1]:
            batch = _batch(key, [candidate], size, "plain")
            models = {batch.control.model.digest: batch.control.model} if batch.control else {}
            found |= {graph: models.get(graph.controlnet or "") for graph in batch.calls}

    def order(graph: GraphKey) -> tuple[int, ...]:
        size, bucket = graph.bucket.size, graph.bucket
        return -size.width * size.height, -size.width, -bucket.controls, -bucket.batch

    return {graph: found[graph] for graph in sorted(found, key=order)}


def _work(key: Group, candidates: Sequence[Candidate]) -> Work:
    alone = _batch(key, candidates[:1], 1, "plain")
    return Work(len(candidates), tuple(alone.calls.items()))


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


def _batch(key: Group, candidates: Sequence[Candidate], lanes: int, numerics: Numerics) -> Batch:
    panel = candidates[0].panel
    control = panel.control
    return Batch(
        bucket=Bucket(lanes, key.size, _CHUNKS, int(control is not None), key.guided),
        loras=in_order(panel.loras),
        sampler=key.sampler,
        steps=key.steps,
        control=ControlWindow(control.model, control.start, control.end) if control else None,
        lanes=(*candidates, *[None] * (lanes - len(candidates))),
        numerics=numerics,
    )
