"""What drawing costs, learned from pictures that were drawn, and the time that is left."""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Self

from comicgen.plan.batch import Batch, Candidate
from comicgen.plan.past import Memory
from comicgen.sizes import Size


@dataclass(frozen=True, slots=True)
class Kind:
    """What the cost of a picture depends on."""

    size: Size
    steps: int
    guided: bool
    control: bool
    sampler: str

    @property
    def work(self) -> float:
        """Pixels times steps times branches of guidance, in millions."""
        return self.size.width * self.size.height * self.steps * (1 + self.guided) / 1e6

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The kind of a candidate with these fields."""
        return cls(
            Size(fields["width"], fields["height"]),
            fields["steps"],
            fields["guidance"] > 1,
            fields["control"] is not None,
            fields["sampler"],
        )

    @classmethod
    def of_batch(cls, batch: Batch) -> Self:
        """The kind of every lane of a batch."""
        bucket = batch.bucket
        control = batch.control is not None
        return cls(bucket.size, batch.steps, bucket.guided, control, batch.sampler)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds for one lane of a batch: by kind, and for a unit of work of unknown kinds."""

    seconds: Mapping[Kind, float] = field(default_factory=dict)
    rate: float | None = None

    @classmethod
    def calibrated(cls, batches: Sequence[Batch], seconds: Sequence[float]) -> Self:
        """From what each of these batches is to take."""
        total: dict[Kind, float] = defaultdict(float)
        lanes: Counter[Kind] = Counter()
        for batch, own in zip(batches, seconds, strict=True):
            total[Kind.of_batch(batch)] += own
            lanes[Kind.of_batch(batch)] += batch.bucket.batch
        return cls._of({kind: whole / lanes[kind] for kind, whole in total.items()})

    @classmethod
    def learned(cls, memory: Memory, environments: Collection[str] = ()) -> Self:
        """From all pictures that were drawn in one of these environments (none: in any).

        Medians, so that the first picture of a run, which warms up, does not count.
        """
        measured: dict[Kind, list[float]] = {}
        for past in memory.candidates.values():
            here = not environments or past.environment in environments
            if past.state != "failed" and past.seconds is not None and here:
                measured.setdefault(Kind.of_fields(past.fields), []).append(past.seconds)
        return cls._of({kind: median(each) for kind, each in measured.items()})

    @classmethod
    def _of(cls, seconds: Mapping[Kind, float]) -> Self:
        rates = [cost / kind.work for kind, cost in seconds.items()]
        return cls(seconds, median(rates) if rates else None)

    def of_batch(self, batch: Batch) -> float | None:
        """Seconds for a whole batch, empty lanes included; None when nothing was measured."""
        return self.of(Kind.of_batch(batch), batch.bucket.batch)

    def of(self, kind: Kind, lanes: int) -> float | None:
        """Seconds for this many lanes of a kind; None when nothing was measured."""
        if kind in self.seconds:
            return self.seconds[kind] * lanes
        return None if self.rate is None else self.rate * kind.work * lanes


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes that pictures will take, or at most will."""

    bytes: int
    at_most: bool

    @classmethod
    def of(cls, candidates: Iterable[Candidate], memory: Memory) -> Self:
        """What files of their sizes took in this folder; without any, three bytes a pixel."""
        known: dict[Size, list[int]] = {}
        for past in memory.candidates.values():
            if past.bytes is not None:
                known.setdefault(Kind.of_fields(past.fields).size, []).append(past.bytes)
        sizes = Counter(each.panel.size for each in candidates)
        total = sum(
            mean(known[size]) * count if size in known else 3 * size.width * size.height * count
            for size, count in sizes.items()
        )
        return cls(round(total), not sizes.keys() <= known.keys())


class Eta:
    """The time left for these batches, better with each that is finished.

    A kind that was measured in this run counts as measured. Any other counts as the costs say,
    or by its work where they say nothing, at the pace at which this run drew what it measured.
    """

    def __init__(self, batches: Iterable[Batch], costs: Costs) -> None:
        self._costs = costs
        self._left: Counter[Kind] = Counter()
        self._finished: Counter[Kind] = Counter()
        self._measured: dict[Kind, list[float]] = {}
        for batch in batches:
            self._left[Kind.of_batch(batch)] += batch.bucket.batch

    def finished(self, batch: Batch, seconds: float | None) -> None:
        """Count off a batch that took `seconds`; None when no picture came of it."""
        kind = Kind.of_batch(batch)
        self._left[kind] -= batch.bucket.batch
        if seconds is not None:
            self._finished[kind] += batch.bucket.batch
            insort(self._measured.setdefault(kind, []), seconds / batch.bucket.batch)

    def remaining(self) -> float | None:
        """Seconds still to go; None before anything was measured, now or ever."""
        pace = self._pace()
        if pace is None:
            return None
        return sum(
            self._own(kind) * lanes if kind in self._measured else self._guess(kind, lanes) * pace
            for kind, lanes in self._left.items()
        )

    def _pace(self) -> float | None:
        """How many times longer than guessed the finished batches took."""
        if not self._measured:
            return None if self._costs.rate is None else 1.0
        took = sum(self._own(kind) * lanes for kind, lanes in self._finished.items())
        return took / sum(self._guess(kind, lanes) for kind, lanes in self._finished.items())

    def _own(self, kind: Kind) -> float:
        return median(self._measured[kind])

    def _guess(self, kind: Kind, lanes: int) -> float:
        """Seconds by the costs or, without any, work; the pace makes that into seconds."""
        seconds = self._costs.of(kind, lanes)
        return kind.work * lanes if seconds is None else seconds
