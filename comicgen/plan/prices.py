"""What a step, and the first use of a graph, cost: as measured here, or else by fixed prices.

Fixed prices are tenths of a millisecond, from steps of SDXL at 1024x1024 on an H200, guided, in
float16 with fused numerics. A first use is a capture and, as its check, about three steps:

    first use of a graph of b lanes     5000 + 3 * step(b)

Pixels, guidance and the ControlNet make all of them dearer by about the same factor, and so are
left out. Measured prices are microseconds. Either are whole numbers, so that sums do not depend
on the order of adding. See docs/decisions/0007.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from comicgen.plan.batch import GraphKey
from comicgen.plan.figures import EAGER_STEPS, Figure, Terms

LADDER = (1, 2, 4, 8, 16)
"""The numbers of lanes that a batch may have. Powers of two, so their sum names a set of them."""

_STEP = {1: 274, 2: 535, 4: 1069, 8: 2020, 16: 4224}


@dataclass(frozen=True, slots=True)
class Work:
    """`count` candidates that may share batches, and how many steps of one replay each graph.

    The graphs are `Batch.calls` of a batch of one lane; they stand for those with more.
    """

    count: int
    calls: tuple[tuple[GraphKey, int], ...]

    @property
    def graphs(self) -> tuple[GraphKey, ...]:
        """The graphs, the one with a ControlNet first."""
        return tuple(graph for graph, _ in self.calls)


@dataclass(frozen=True, slots=True)
class Prices:
    """What each graph of one lane costs with so many lanes: a step, and the first use."""

    step: Mapping[tuple[GraphKey, int], int]
    first_use: Mapping[tuple[GraphKey, int], int]

    def batch(self, work: Work, lanes: int) -> int:
        """What a batch of so many lanes costs."""
        return sum(self.step[graph, lanes] * steps for graph, steps in work.calls)


def fixed_step(lanes: int) -> int:
    """The fixed price of a step of a batch."""
    return _STEP[lanes]


def fixed_first_use(lanes: int) -> int:
    """The fixed price of capturing and checking a graph."""
    return 5000 + 3 * fixed_step(lanes)


def prices(work: Sequence[Work], terms: Terms) -> Prices:
    """What these terms make of this work: measured prices if every bucket of it was measured."""
    graphs = {graph for each in work for graph in each.graphs}
    buckets = {(graph, lanes) for graph in graphs for lanes in LADDER if lanes <= terms.lanes}
    figures = {each: terms.figure(of_lanes(*each).bucket) for each in buckets}
    measured = {each: figure for each, figure in figures.items() if figure}
    if len(measured) == len(buckets):
        return _measured(measured, work, terms)
    return Prices(
        {each: fixed_step(each[1]) for each in buckets},
        {each: fixed_first_use(each[1]) if terms.captured else 0 for each in buckets},
    )


def of_lanes(graph: GraphKey, lanes: int) -> GraphKey:
    """The graph that serves so many lanes, as another serves one."""
    return replace(graph, bucket=replace(graph.bucket, batch=lanes))


def _measured(
    figures: Mapping[tuple[GraphKey, int], Figure], work: Sequence[Work], terms: Terms
) -> Prices:
    """A graph that would not pay if all work were drawn in its bucket will not be captured."""
    step, first_use = {}, {}
    for (graph, lanes), figure in figures.items():
        assert figure.eager is not None
        most = sum(-(-each.count // lanes) * dict(each.calls).get(graph, 0) for each in work)
        quick, once = figure.eager, 0.0
        if terms.captured and (terms.insisted or figure.pays(most)):
            assert figure.replayed is not None
            quick = figure.replayed
            once = figure.seconds(EAGER_STEPS, graph=True) - quick * EAGER_STEPS
        step[graph, lanes] = round(quick * 1e6)
        first_use[graph, lanes] = round(once * 1e6)
    return Prices(step, first_use)
