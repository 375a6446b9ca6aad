"""What measurements decide: numerics of a folder and of each size, and which graphs pay."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, NamedTuple

from comicgen.numerics import Numerics
from comicgen.plan.batch import Batch, GraphKey
from comicgen.plan.figures import Figure, Terms
from comicgen.plan.lanes import every_work
from comicgen.plan.packing import pack
from comicgen.plan.prices import Work, of_lanes
from comicgen.sizes import Size
from comicgen.storyboard import Storyboard


@dataclass(frozen=True, slots=True)
class Choice:
    """How the steps of one bucket are drawn, and the seconds of a step that speak for it.

    `eager` and `replayed` are those of its numerics, `plain` and `fused` the quicker of the two in
    either; None was not measured.
    """

    key: GraphKey
    numerics: Numerics
    graph: bool
    eager: float | None
    replayed: float | None
    plain: float | None
    fused: float | None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, with the bucket in words."""
        told = asdict(self)
        del told["key"]
        return {"bucket": str(self.key), **told}


def choices(batches: Iterable[Batch], terms: Terms) -> tuple[Choice, ...]:
    """The choices for every bucket of these batches, in the order of drawing."""
    batches = tuple(batches)
    skipped = without(batches, terms)
    return tuple(_choice(key, key not in skipped, terms) for key in _steps(batches))


def without(batches: Iterable[Batch], terms: Terms) -> frozenset[GraphKey]:
    """The graphs that would not be replayed often enough to pay for their first use."""
    if not terms.captured or terms.insisted:
        return frozenset()
    used = _steps(batches)
    return frozenset(key for key, steps in used.items() if not _figure(key, terms).pays(steps))


def seconds(batches: Sequence[Batch], terms: Terms) -> list[float] | None:
    """What each batch takes, the first uses of its new graphs included.

    None where any of it was not measured.
    """
    skipped, done = without(batches, terms), Counter[GraphKey]()
    each = []
    for batch in batches:
        decode = terms.figures.decode.get((batch.numerics, batch.bucket.size))
        if decode is None:
            return None
        took = decode * len(batch.candidates)
        for key, steps in batch.calls.items():
            figure = terms.figure(key.bucket)
            if figure is None:
                return None
            graph = terms.captured and key not in skipped
            took += figure.seconds(done[key] + steps, graph)
            if done[key]:
                took -= figure.seconds(done[key], graph)
            done[key] += steps
        each.append(took)
    return each


def memory_of(batches: Iterable[Batch], terms: Terms) -> int | None:
    """Bytes of GPU memory that the largest bucket takes; None where any was not measured."""
    figures = [terms.figure(key.bucket) for key in _steps(batches)]
    known = [figure.bytes for figure in figures if figure]
    return max(known, default=0) if len(known) == len(figures) else None


def numerics_for(storyboard: Storyboard, terms: Terms) -> Numerics:
    """The numerics of a new folder, where both are possible: the quicker for the whole storyboard.

    Fused ones count with the sizes that such a folder draws plain, and are taken where anything
    was not measured.
    """
    work, opening = every_work(storyboard), terms.figures.opening
    arms = _arms(work, terms)
    if len(arms) < len(work) or len(opening) < 2:
        return "fused"
    sizes = _plainly(arms, opening["plain"])
    plain = opening["plain"] + sum(each.plain for each in arms.values())
    fused = opening["fused"] + opening["plain"] * bool(sizes)
    fused += sum(each.plain if size in sizes else each.fused for size, each in arms.items())
    return "plain" if plain < fused else "fused"


def numerics_by_size(
    storyboard: Storyboard, terms: Terms, decided: Mapping[Size, Numerics]
) -> Mapping[Size, Numerics]:
    """The numerics of each size of a folder, all of whose pictures of a size have the same.

    In a fused folder those sizes are plain that were measured to be quicker so, if for the whole
    storyboard they gain more than opening the model with plain numerics too takes. What is
    `decided` stays; where a size of the storyboard was decided to be plain, that opening is paid.
    """
    if terms.numerics == "plain":
        return {}
    work = every_work(storyboard)
    left = {size: own for size, own in work.items() if size not in decided}
    opened = "plain" in (decided.get(size) for size in work)
    opening = 0.0 if opened else terms.figures.opening.get("plain", inf)
    plain = _plainly(_arms(left, terms), opening)
    return {**decided, **{size: "plain" if size in plain else "fused" for size in left}}


class _Arms(NamedTuple):
    """Seconds that all pictures of a size take with either numerics."""

    plain: float
    fused: float


def _arms(work: Mapping[Size, Sequence[Work]], terms: Terms) -> dict[Size, _Arms]:
    """Both arms of each size of which both were measured."""
    found = {}
    for size, each in work.items():
        plain = _total(size, each, replace(terms, numerics="plain", sizes={}))
        fused = _total(size, each, replace(terms, numerics="fused", sizes={}))
        if plain is not None and fused is not None:
            found[size] = _Arms(plain, fused)
    return found


def _plainly(arms: Mapping[Size, _Arms], opening: float) -> Collection[Size]:
    """The sizes that a fused folder draws plain, where `opening` the model so is to be earned."""
    gains = {size: own.fused - own.plain for size, own in arms.items() if own.plain < own.fused}
    return gains.keys() if sum(gains.values()) > opening else ()


def _total(size: Size, work: Sequence[Work], terms: Terms) -> float | None:
    """What all work of a size takes; None where any of it was not measured."""
    decode = terms.figures.decode.get((terms.numerics, size))
    if decode is None:
        return None
    used: Counter[GraphKey] = Counter()
    packed = Counter(zip(work, pack(work, terms), strict=True))
    for (each, batches), times in packed.items():
        for lanes in batches:
            used.update({of_lanes(key, lanes): steps * times for key, steps in each.calls})
    took = decode * sum(each.count for each in work)
    for key, steps in used.items():
        figure = terms.figure(key.bucket)
        if figure is None:
            return None
        took += figure.seconds(steps, terms.captured and (terms.insisted or figure.pays(steps)))
    return took


def _steps(batches: Iterable[Batch]) -> Counter[GraphKey]:
    """How many steps each graph serves, in the order of their first use."""
    total: Counter[GraphKey] = Counter()
    for batch in batches:
        total.update(batch.calls)
    return total


def _figure(key: GraphKey, terms: Terms, numerics: Numerics | None = None) -> Figure:
    own = numerics or terms.of(key.bucket.size)
    return terms.figures.buckets.get((own, key.bucket), Figure())


def _choice(key: GraphKey, pays: bool, terms: Terms) -> Choice:
    own = _figure(key, terms)
    return Choice(
        key=key,
        numerics=terms.of(key.bucket.size),
        graph=terms.captured and pays,
        eager=own.eager,
        replayed=own.replayed,
        plain=_figure(key, terms, "plain").quickest,
        fused=_figure(key, terms, "fused").quickest,
    )
