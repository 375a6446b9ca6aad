"""What was measured of drawing on this machine, and on what terms a plan may use it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from comicgen.numerics import Numerics
from comicgen.plan.batch import Bucket
from comicgen.sizes import Size

EAGER_STEPS = 3
"""So many steps of a bucket are called before its graph is captured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Of one bucket: seconds of a step of all its lanes, called and replayed from a graph.

    `first_use` is what it takes to capture and check the graph, `bytes` the GPU memory of a step
    or a decode, whichever takes more, beyond the weights.
    """

    eager: float | None = None
    replayed: float | None = None
    first_use: float | None = None
    bytes: int = 0

    @property
    def quickest(self) -> float | None:
        """Seconds of a step in the quicker way of those that were measured."""
        return min((way for way in (self.eager, self.replayed) if way is not None), default=None)

    def pays(self, steps: int) -> bool:
        """Whether a graph gains more than its first use costs, if so many steps are drawn.

        What was not measured is taken to pay.
        """
        if self.eager is None or self.replayed is None or self.first_use is None:
            return True
        return (self.eager - self.replayed) * max(steps - EAGER_STEPS, 0) > self.first_use

    def seconds(self, steps: int, graph: bool) -> float:
        """What so many steps take, with the first use of their graph if they have one."""
        assert self.eager is not None
        if not graph:
            return self.eager * steps
        assert self.replayed is not None
        assert self.first_use is not None
        called = min(steps, EAGER_STEPS)
        return self.eager * called + self.replayed * (steps - called) + self.first_use


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was measured here of one architecture; an empty one knows nothing.

    `decode` are seconds of decoding one picture, `opening` those of loading the model.
    """

    buckets: Mapping[tuple[Numerics, Bucket], Figure] = field(default_factory=dict)
    decode: Mapping[tuple[Numerics, Size], float] = field(default_factory=dict)
    opening: Mapping[Numerics, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kernels:
    """With what a folder is drawn: its numerics, and what was measured of them here.

    `plain_environment` is the label of sizes that a fused folder draws plain; "" is not compared.
    """

    numerics: Numerics = "plain"
    figures: Figures = field(default_factory=Figures)
    plain_environment: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """How batches are drawn: at most `lanes` side by side, `captured` in graphs or not.

    `insisted` is for all graphs, whether they pay or not.

    `sizes` are drawn with numerics of their own, all others with `numerics`.
    """

    lanes: int = 1
    captured: bool = True
    numerics: Numerics = "plain"
    sizes: Mapping[Size, Numerics] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    insisted: bool = False

    def of(self, size: Size) -> Numerics:
        """The numerics of all pictures of a size."""
        return self.sizes.get(size, self.numerics)

    def figure(self, bucket: Bucket) -> Figure | None:
        """What was measured of a bucket; None unless it is all that these terms need."""
        figure = self.figures.buckets.get((self.of(bucket.size), bucket))
        if figure is None or figure.eager is None:
            return None
        whole = figure.replayed is not None and figure.first_use is not None
        return figure if whole or not self.captured else None
