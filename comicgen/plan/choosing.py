"""What measurements decide: numerics of a folder and of each size, and which graphs pay."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from comicgen.numerics import Numerics
from comicgen.plan.batch import Batch, Candidate, GraphKey
from comicgen.plan.candidates import every_candidate
from comicgen.plan.figures import Figure, Terms
from comicgen.plan.lanes import assign
from comicgen.plan.past import Memory
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
    skipped, new = without(batches, terms), set(_steps(batches))
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
            if graph and key not in new:
                assert figure.replayed is not None
                took += figure.replayed * steps
            else:
                took += figure.seconds(steps, graph)
            new.discard(key)
        each.append(took)
    return each


def memory_of(batches: Iterable[Batch], terms: Terms) -> int | None:
    """Bytes of GPU memory that the largest bucket takes; None where any was not measured."""
    figures = [terms.figure(key.bucket) for key in _steps(batches)]
    known = [figure.bytes for figure in figures if figure]
    return max(known, default=0) if len(known) == len(figures) else None


def numerics_for(storyboard: Storyboard, terms: Terms) -> Numerics:
    """The numerics of a new folder, where both are possible: the quicker for the whole storyboard.

    Fused where that was not measured.
    """
    candidates, opening = every_candidate(storyboard, Memory()), terms.figures.opening
    plain, fused = _in_plain(candidates, terms), _in_fused(candidates, terms)
    if plain is None or fused is None:
        return "fused"
    if len(opening) == 2:
        plain, fused = plain + opening["plain"], fused + opening["fused"]
    return "plain" if plain < fused else "fused"


def numerics_by_size(
    storyboard: Storyboard, terms: Terms, decided: Mapping[Size, Numerics]
) -> Mapping[Size, Numerics]:
    """The numerics of each size of a folder, all of whose pictures of a size have the same.

    In a fused folder a size is plain if the whole storyboard's pictures of it were measured to be
    quicker so. What is `decided` stays.
    """
    if terms.numerics == "plain":
        return {}
    sizes: dict[Size, list[Candidate]] = {}
    for candidate in every_candidate(storyboard, Memory()):
        sizes.setdefault(candidate.panel.size, []).append(candidate)
    chosen = {size: _quicker(each, terms) for size, each in sizes.items() if size not in decided}
    return {**decided, **chosen}


def _quicker(candidates: Sequence[Candidate], terms: Terms) -> Numerics:
    plain, fused = _in_plain(candidates, terms), _in_fused(candidates, terms)
    return "fused" if plain is None or fused is None or fused <= plain else "plain"


def _in_plain(candidates: Sequence[Candidate], terms: Terms) -> float | None:
    return _total(candidates, replace(terms, numerics="plain", sizes={}))


def _in_fused(candidates: Sequence[Candidate], terms: Terms) -> float | None:
    return _total(candidates, replace(terms, numerics="fused", sizes={}))


def _total(candidates: Sequence[Candidate], terms: Terms) -> float | None:
    if not terms.figures.decode:
        return None
    each = seconds(assign(candidates, terms), terms)
    return None if each is None else sum(each)


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
