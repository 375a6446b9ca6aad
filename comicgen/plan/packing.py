"""How many lanes the batches of a story have, so that drawing it takes the least time.

A batch has 1, 2, 4, 8 or 16 lanes, and the last may be empty. Each number of lanes in use is a
CUDA graph of its own, which costs time before it draws anything:

    a batch of b lanes              steps * forward(b)
    first use of a graph of b       forward(b) + 8 * forward(1) + 500
    forward(b)                      b * price(b)

that is one forward to check, about eight inputs changed one by one, and the capture itself; the
calls that warm up are steps of the first batch. The unit is a hundredth of one lane's step in a
batch of 8. Pixels and guidance make batches and first uses dearer by the same factor, and so are
left out; so is the ControlNet. Where the device has no graphs, all are `paid` for.

The price of a lane is fixed: from replays of SDXL at 1024x1024 on an H200, guided, which took
41.6, 76, 146 and 283 ms a step for 1, 2, 4 and 8 lanes before its modules were made leaner; 16
are taken to be a little cheaper still. See docs/decisions/0007.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from operator import and_, itemgetter

from comicgen.plan.batch import Bucket, GraphKey

LADDER = (1, 2, 4, 8, 16)
"""The numbers of lanes that a batch may have. Powers of two, so their sum names a set of them."""

_PRICE = {1: 118, 2: 107, 4: 103, 8: 100, 16: 99}


@dataclass(frozen=True, slots=True)
class Work:
    """`count` candidates that may share batches, and the graphs that one of them would replay.

    `graphs` are `Batch.keys` of a batch of one lane; they stand for those with more.
    """

    count: int
    steps: int
    graphs: tuple[GraphKey, ...]


def forward(lanes: int) -> int:
    """Time of one step of a batch, in hundredths of one lane's step in a batch of 8."""
    return lanes * _PRICE[lanes]


def first_use(lanes: int) -> int:
    """Time for capture and check of a graph, in the unit of `forward`."""
    return forward(lanes) + 8 * forward(1) + 500


def pack(
    work: Sequence[Work], lanes: int, paid: Collection[GraphKey] = ()
) -> list[tuple[int, ...]]:
    """The lanes of the batches for each piece of work, largest first, none above `lanes`.

    Their total time, with the first use of each graph that is not `paid` for, is the least
    there is. Equal times are told apart by fewer batches, then by larger ones. The order of
    `work` does not matter.
    """
    paid_sizes: Counter[GraphKey] = Counter()
    for key in set(paid):
        paid_sizes[_of_one_lane(key)] += key.bucket.batch
    families: dict[Bucket, list[Work]] = defaultdict(list)
    for each in work:
        families[_plain(each).bucket].append(each)
    sizes: dict[GraphKey, int] = {}
    for family in families.values():
        sizes |= _choose(family, lanes, paid_sizes)
    return [
        cover(each.count, reduce(and_, (sizes[graph] for graph in each.graphs))) for each in work
    ]


def cover(count: int, sizes: int) -> tuple[int, ...]:
    """The quickest batches for `count` candidates out of a set of sizes, largest first.

    Exact: a lane is cheaper in a larger batch, so smaller ones that together fill the largest
    never pay, and only the remainder is in question.
    """
    largest = 1 << (sizes.bit_length() - 1)
    full, rest = divmod(count, largest)
    if not rest:
        return (largest,) * full
    tails: list[tuple[int, ...]] = [(largest,)]
    if sizes > largest:
        tails.append(cover(rest, sizes - largest))
    return (largest,) * full + min(tails, key=_time)


@dataclass(frozen=True, slots=True, order=True)
class _Cost:
    """Time, in the unit of `forward`; between equal times the number of batches decides."""

    time: float
    batches: int = 0

    def __add__(self, other: "_Cost") -> "_Cost":
        return _Cost(self.time + other.time, self.batches + other.batches)


def _choose(work: Sequence[Work], lanes: int, paid: Counter[GraphKey]) -> dict[GraphKey, int]:
    """The set of sizes for each graph of a family: all work of one picture size, guided or not.

    Steps outside a ControlNet's window replay the graph of panels that have none. For each set
    of sizes that this one may have, the best of every ControlNet are found apart.
    """
    plain = _plain(work[0])
    alike: dict[tuple[GraphKey, ...], Counter[tuple[int, int]]] = defaultdict(Counter)
    for each in work:
        alike[each.graphs][each.count, each.steps] += 1
    controlled = {graphs[0] for graphs in alike} - {plain}
    subsets = range(2 * lanes - 1, -1, -1)  # min() takes the first of equals: larger batches
    alone = {
        graph: _added(_drawing(alike[(graph,)], lanes), _captures(paid[graph], lanes))
        for graph in (plain, *controlled)
    }
    partly = {graph: _drawing(alike[graph, plain], lanes) for graph in controlled}

    def best(graph: GraphKey, outside: int) -> tuple[_Cost, int]:
        costs = ((alone[graph][own] + partly[graph][own & outside], own) for own in subsets)
        return min(costs, key=itemgetter(0))

    def whole(outside: int) -> tuple[_Cost, dict[GraphKey, int]]:
        inside = {graph: best(graph, outside) for graph in controlled}
        cost = sum((cost for cost, _ in inside.values()), start=alone[plain][outside])
        return cost, {plain: outside, **{graph: own for graph, (_, own) in inside.items()}}

    return min(map(whole, subsets), key=itemgetter(0))[1]


def _drawing(alike: Mapping[tuple[int, int], int], lanes: int) -> list[_Cost]:
    """What drawing costs, by the set of sizes; `alike` tells how often a (count, steps) occurs."""
    none = _Cost(inf if alike else 0)
    return [none, *(_drawn(alike, sizes) for sizes in range(1, 2 * lanes))]


def _drawn(alike: Mapping[tuple[int, int], int], sizes: int) -> _Cost:
    covers = [(cover(count, sizes), steps, times) for (count, steps), times in alike.items()]
    return _Cost(
        sum(_time(batches) * steps * times for batches, steps, times in covers),
        sum(len(batches) * times for batches, _, times in covers),
    )


def _captures(paid: int, lanes: int) -> list[_Cost]:
    """What the first uses of a graph cost, by the set of sizes, those already paid for left out."""
    return [
        _Cost(sum(first_use(size) for size in LADDER if size & sizes & ~paid))
        for sizes in range(2 * lanes)
    ]


def _added(one: Iterable[_Cost], other: Iterable[_Cost]) -> list[_Cost]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _time(batches: Iterable[int]) -> int:
    return sum(map(forward, batches))


def _plain(work: Work) -> GraphKey:
    return GraphKey(replace(work.graphs[0].bucket, controls=0))


def _of_one_lane(key: GraphKey) -> GraphKey:
    return replace(key, bucket=replace(key.bucket, batch=1))
