"""How many lanes the batches of a run have, so that drawing it takes the least time.

A batch has 1, 2, 4, 8 or 16 lanes, and the last may be empty. Each number of lanes in use is a
CUDA graph of its own, which costs time before it draws anything.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from operator import and_, itemgetter

from comicgen.plan.batch import Bucket, GraphKey
from comicgen.plan.figures import Terms
from comicgen.plan.prices import LADDER, Prices, Work, prices


def pack(work: Sequence[Work], terms: Terms) -> list[tuple[int, ...]]:
    """The lanes of the batches for each piece of work, largest first, none above `terms.lanes`.

    By the prices of these terms their total time, with the first use of each graph, is the least
    there is. Equal times are told apart by fewer batches, then by fewer empty lanes. The order of
    `work` does not matter.
    """
    families: dict[Bucket, list[Work]] = defaultdict(list)
    for each in work:
        families[_plain(each).bucket].append(each)
    packed: dict[Work, tuple[int, ...]] = {}
    for family in families.values():
        own = prices(family, terms)
        sizes = _choose(family, terms.lanes, own)
        packed |= {each: _cover(each, _shared(each, sizes), own) for each in set(family)}
    return [packed[each] for each in work]


def cover(count: int, sizes: int, price: Callable[[int], float]) -> tuple[int, ...]:
    """The cheapest batches for `count` candidates out of a set of sizes, largest first.

    Exact: where a lane is cheapest, larger batches can be parted into such and smaller ones that
    together fill one be joined, so that only the remainder is in question.
    """
    best = min(
        (size for size in reversed(LADDER) if size & sizes), key=lambda size: price(size) / size
    )
    full, rest = divmod(count, best)
    if not rest:
        return (best,) * full
    tails: list[tuple[int, ...]] = [(best,)]
    if smaller := sizes & (best - 1):
        tails.append(cover(rest, smaller, price))
    return (best,) * full + min(tails, key=lambda tail: (_total(tail, price), len(tail), sum(tail)))


def _total(batches: Iterable[int], price: Callable[[int], float]) -> float:
    return sum(map(price, batches))


@dataclass(frozen=True, slots=True, order=True)
class _Cost:
    """Time, in the unit of the prices; between equal times the number of batches decides."""

    time: float
    batches: int = 0

    def __add__(self, other: "_Cost") -> "_Cost":
        return _Cost(self.time + other.time, self.batches + other.batches)


def _choose(work: Sequence[Work], lanes: int, own: Prices) -> dict[GraphKey, int]:
    """The set of sizes for each graph of a family: all work of one picture size, guided or not.

    Steps outside a ControlNet's window replay the graph of panels that have none. For each set
    of sizes that this one may have, the best of every ControlNet are found apart.
    """
    plain = _plain(work[0])
    alike: dict[tuple[GraphKey, ...], Counter[Work]] = defaultdict(Counter)
    for each in work:
        alike[each.graphs][each] += 1
    controlled = {graphs[0] for graphs in alike} - {plain}
    subsets = range(2 * lanes - 1, -1, -1)  # min() takes the first of equals: larger batches
    alone = {
        graph: _added(_drawing(alike[(graph,)], lanes, own), _captures(graph, lanes, own))
        for graph in (plain, *controlled)
    }
    partly = {graph: _drawing(alike[graph, plain], lanes, own) for graph in controlled}

    def best(graph: GraphKey, outside: int) -> tuple[_Cost, int]:
        costs = ((alone[graph][inner] + partly[graph][inner & outside], inner) for inner in subsets)
        return min(costs, key=itemgetter(0))

    def whole(outside: int) -> tuple[_Cost, dict[GraphKey, int]]:
        inside = {graph: best(graph, outside) for graph in controlled}
        cost = sum((cost for cost, _ in inside.values()), start=alone[plain][outside])
        return cost, {plain: outside, **{graph: inner for graph, (_, inner) in inside.items()}}

    return min(map(whole, subsets), key=itemgetter(0))[1]


def _shared(work: Work, sizes: Mapping[GraphKey, int]) -> int:
    """The sizes that all graphs of a piece of work have."""
    return reduce(and_, (sizes[graph] for graph in work.graphs))


def _cover(work: Work, sizes: int, own: Prices) -> tuple[int, ...]:
    return cover(work.count, sizes, lambda lanes: own.batch(work, lanes))


def _drawing(alike: Mapping[Work, int], lanes: int, own: Prices) -> list[_Cost]:
    """What drawing costs, by the set of sizes; `alike` tells how often a piece of work occurs."""
    none = _Cost(inf if alike else 0)
    return [none, *(_drawn(alike, sizes, own) for sizes in range(1, 2 * lanes))]


def _drawn(alike: Mapping[Work, int], sizes: int, own: Prices) -> _Cost:
    covers = [(each, _cover(each, sizes, own), times) for each, times in alike.items()]
    return _Cost(
        sum(own.batch(each, size) * times for each, batches, times in covers for size in batches),
        sum(len(batches) * times for _, batches, times in covers),
    )


def _captures(graph: GraphKey, lanes: int, own: Prices) -> list[_Cost]:
    """What the first uses of a graph cost, by the set of sizes."""
    return [
        _Cost(sum(own.first_use.get((graph, size), 0) for size in LADDER if size & sizes))
        for sizes in range(2 * lanes)
    ]


def _added(one: Iterable[_Cost], other: Iterable[_Cost]) -> list[_Cost]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _plain(work: Work) -> GraphKey:
    return GraphKey(replace(work.graphs[0].bucket, controls=0))
