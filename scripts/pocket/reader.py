"""The reader: small networks that read what a picture shows from its pixels.

    python scripts/pocket/reader.py POOL FILE [--seconds 60] [--who]

trains one on the composed scenes of a pool (`pool.py`), never on a drawn picture. The plain one
reads style, setting, time and, for each place, who stands there in which shirt; `--who` makes the
one that tells the LoRA's people apart.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from captions import Facts, Subject
from feed import Feed
from lines import blurred
from noir import LUMA, noir
from people import NAMES
from person_scenes import SHOWN_SETTINGS
from pixels import as_values
from pool import SHARES, Chunk
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from training import say
from vocabulary import COLOURS, PLACES, SETTINGS, SIZES, STYLES, SUBJECTS, TIMELESS, TIMES

WIDTHS = (32, 64, 96, 128)
"""Channels of the stages; the sides are a fourth, an eighth, a sixteenth and a sixteenth."""
HIDDEN = 160
NOBODY, UNSHIRTED = len(SUBJECTS), len(COLOURS)
NO_ONE = len(NAMES)
"""None of the people."""
UNASKED = -100
"""A label that the loss leaves out."""
LIMIT = 120_000
"""Scenes of a kind that are kept on the device."""
RATE, DECAY = 2e-3, 0.05
WARMUP = 0.04
"""Share of the time in which the rate rises."""
PATIENCE = 180
"""Seconds to wait for the first scenes."""
NOIR_SHARE = 0.1
"""Of the pictures: learnt in the noir look, where colours and light cannot be told."""
GLOBAL = (len(STYLES), len(SETTINGS), len(TIMES))
ATTRIBUTES = (
    "subject",
    "subject alone",
    "subject of two",
    "setting",
    "time",
    "style",
    "shirt colour",
    "side",
)
"""What a drawn picture is asked for."""

Model = TypeVar("Model", "Reader", "Who")
Forward = Callable[[Tensor], Any]
"""A model under training, for pictures (n, 3, h, w), -1 to 1."""


class Block(nn.Module):
    """Two convolutions around a shortcut: (n, c, h, w) to (n, width, h / stride, w / stride)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(channels, width, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.short(x))


class Trunk(nn.Module):
    """Pictures (n, 3, h, w), -1 to 1, to features (n, 128, h / 16, w / 16) that know where
    they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 5, 2, 2, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        self.stages = nn.ModuleList(
            Block(channels, width, stride)
            for channels, width, stride in zip(
                (WIDTHS[0], *WIDTHS), WIDTHS, (2, 2, 2, 1), strict=False
            )
        )
        self.position = nn.Linear(4, WIDTHS[2])

    def forward(self, pictures: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.stem(pictures)))
        for stage in self.stages[:-1]:
            x = stage(x)
        where = self.position(_coordinates(*x.shape[2:], device=x.device))
        return self.stages[-1](x + where.permute(2, 0, 1).to(x.dtype))


def _coordinates(h: int, w: int, device: torch.device) -> Tensor:
    """y, x and their squares, -1 to 1, (h, w, 4)."""
    y, x = (torch.linspace(-1, 1, side, device=device) for side in (h, w))
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij"), 2)
    return torch.cat([grid, grid.square()], 2)


@dataclass(frozen=True)
class Logits:
    """style, setting, time: (n, classes); nouns, colours: (n, places, classes), last is none."""

    style: Tensor
    setting: Tensor
    time: Tensor
    nouns: Tensor
    colours: Tensor


class Reader(nn.Module):
    """What a scene shows. For each place it looks where it likes, and at a third of the width."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()
        self.scene = nn.Linear(2 * WIDTHS[-1], sum(GLOBAL))
        self.look = nn.Conv2d(WIDTHS[-1], len(PLACES), 1)
        self.place = nn.Parameter(torch.zeros(len(PLACES), HIDDEN))
        self.hidden = nn.Linear(3 * WIDTHS[-1], HIDDEN)
        self.cast = nn.Linear(HIDDEN, NOBODY + 1 + UNSHIRTED + 1)

    def forward(self, pictures: Tensor) -> Logits:
        """pictures: (n, 3, h, w), -1 to 1."""
        features = self.trunk(pictures)
        mean, most = features.mean((2, 3)), features.amax((2, 3))
        style, setting, daytime = self.scene(torch.cat([mean, most], 1)).float().split(GLOBAL, 1)
        looks = self.look(features).flatten(2).float().softmax(2).to(features.dtype)
        seen = looks @ features.flatten(2).transpose(1, 2)
        thirds = functional.adaptive_avg_pool2d(features, (1, len(PLACES)))[:, :, 0]
        around = mean[:, None].expand(-1, len(PLACES), -1)
        known = torch.cat([seen, thirds.transpose(1, 2), around], 2)
        cast = self.cast(functional.relu(self.hidden(known) + self.place)).float()
        nouns, colours = cast.split((NOBODY + 1, UNSHIRTED + 1), 2)
        return Logits(style, setting, daytime, nouns, colours)


class Who(nn.Module):
    """Which of the people is to be seen: (n, 3, h, w), -1 to 1, to logits (n, people + 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()
        self.head = nn.Linear(2 * WIDTHS[-1], NO_ONE + 1)

    def forward(self, pictures: Tensor) -> Tensor:
        features = self.trunk(pictures)
        pooled = torch.cat([features.mean((2, 3)), features.amax((2, 3))], 1)
        return self.head(pooled).float()


def save(model: nn.Module, file: Path) -> None:
    """The weights in half precision."""
    file.parent.mkdir(parents=True, exist_ok=True)
    halves = {
        name: (value.half() if value.is_floating_point() else value).cpu().contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(halves, file)


def load(kind: type[Model], file: Path, device: torch.device) -> Model:
    """A `Reader` or a `Who` from its file, ready to read."""
    model = kind()
    model.load_state_dict(load_file(file))
    return model.eval().requires_grad_(False).to(device)


# What is learnt from.


def scene_labels(chunk: Chunk) -> Tensor:
    """Style, setting, time, a noun for each place, a shirt for each place: (n, 9), int64."""
    return torch.tensor([_labels(facts) for facts in chunk.facts])


def _labels(facts: Facts) -> list[int]:
    daytime = UNASKED if facts.setting in TIMELESS else _index(TIMES)[facts.time]
    nouns, shirts = [NOBODY] * len(PLACES), [UNSHIRTED] * len(PLACES)
    for subject in facts.subjects:
        place = _index(PLACES)[subject.place]
        nouns[place] = _index(SUBJECTS)[subject.noun]
        if has_shirt(subject):
            shirts[place] = _index(COLOURS)[subject.colour]
    return [_index(STYLES)[facts.style], _index(SETTINGS)[facts.setting], daytime, *nouns, *shirts]


def _index(words: Sequence[str] | dict) -> dict[str, int]:
    """Where each word stands."""
    return _numbered(tuple(words))


@cache
def _numbered(words: tuple[str, ...]) -> dict[str, int]:
    return {word: n for n, word in enumerate(words)}


def has_shirt(subject: Subject) -> bool:
    return subject.is_figure and subject.colour is not None


def who_labels(chunk: Chunk) -> Tensor:
    """Which of the people, (n, 1), int64.

    Scenes without them count only in settings that show the people as well, so that no setting
    tells that nobody is there.
    """
    return torch.tensor([[_who(facts)] for facts in chunk.facts])


def _who(facts: Facts) -> int:
    noun = facts.subjects[0].noun
    if noun in NAMES:
        return NAMES.index(noun)
    return NO_ONE if facts.setting in SHOWN_SETTINGS else UNASKED


class Shelf:
    """Pictures (n, h, w, 3), uint8, and labels (n, k), int64, of one size and kind."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.most, self.device, self.count = most, device, 0
        self.pictures = self.labels = torch.empty(0)

    def add(self, pictures: Tensor, labels: Tensor) -> None:
        """Keep as many as there is room for."""
        end = min(self.most, self.count + len(pictures))
        if end > len(self.pictures):
            room = min(self.most, 2 * end)
            self.pictures = self._grown(self.pictures, pictures, room)
            self.labels = self._grown(self.labels, labels, room)
        self.pictures[self.count : end] = pictures[: end - self.count].to(self.device)
        self.labels[self.count : end] = labels[: end - self.count].to(self.device)
        self.count = end

    def _grown(self, old: Tensor, like: Tensor, room: int) -> Tensor:
        new = torch.empty((room, *like.shape[1:]), dtype=like.dtype, device=self.device)
        if self.count:
            new[: self.count] = old[: self.count]
        return new

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Pictures (count, 3, h, w), -1 to 1, float32, and their labels."""
        chosen = torch.randint(self.count, (count,), device=self.device)
        pictures = self.pictures[chosen].permute(0, 3, 1, 2)
        return as_values(pictures), self.labels[chosen]


class Supply:
    """The scenes of a pool on shelves of the device, taken in as they appear.

    kinds: those of the chunks that are wanted; a batch has as many of each.
    """

    def __init__(
        self,
        pool: Path,
        kinds: tuple[str, ...],
        labels_of: Callable[[Chunk], Tensor],
        device: torch.device,
    ) -> None:
        self.feed, self.kinds, self.labels_of, self.device = (
            Feed(pool, waiting=48, shared=False),
            kinds,
            labels_of,
            device,
        )
        self.shelves = {
            (kind, size): Shelf(LIMIT * share // sum(SHARES), device)
            for kind in kinds
            for size, share in zip(SIZES, SHARES, strict=True)
        }

    @property
    def count(self) -> int:
        return sum(shelf.count for shelf in self.shelves.values())

    def take_in(self, most: int = 4) -> None:
        """Shelve what was read since, at most so many chunks."""
        if all(shelf.count == shelf.most for shelf in self.shelves.values()):
            return
        for chunk in self.feed.ready(most):
            shelf = self.shelves.get((chunk.kind, chunk.size))
            if shelf and shelf.count < shelf.most:
                shelf.add(torch.from_numpy(chunk.pictures), self.labels_of(chunk))

    def draw(self, count: int) -> tuple[Tensor, Tensor] | None:
        """A batch of one size, the kinds one after the other; None when too little is there."""
        counts = [min(self.shelves[kind, size].count for kind in self.kinds) for size in SIZES]
        if not any(counts):
            return None
        size = SIZES[int(torch.multinomial(torch.tensor(counts).float(), 1))]
        parts = [self.shelves[kind, size].draw(count // len(self.kinds)) for kind in self.kinds]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def varied(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """The pictures (n, 3, h, w), -1 to 1, a little moved and a little spoilt, half of them turned
    left to right; and which were turned, (n,), bool.
    """
    n, device = len(pictures), pictures.device

    def between(low: float, high: float) -> Tensor:
        return torch.rand(n, 1, 1, 1, device=device) * (high - low) + low

    turned = torch.rand(n, device=device) < 0.5
    scale = between(0.94, 1.06).flatten()
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0] = torch.where(turned, -scale, scale)
    theta[:, 1, 1] = scale
    theta[:, :, 2] = torch.rand(n, 2, device=device) * 0.08 - 0.04
    grid = functional.affine_grid(theta, list(pictures.shape), align_corners=False)
    x = functional.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    if torch.rand(()) < 0.5:
        small = functional.interpolate(x, scale_factor=0.5 + float(torch.rand(())) / 2, mode="area")
        x = functional.interpolate(small, x.shape[2:], mode="bilinear")
    x = torch.lerp(x, blurred(x), between(-1, 1).clamp(min=0))
    grey = _luma(x)
    x = torch.lerp(grey, x, between(0.8, 1.2)) * between(0.85, 1.15) + between(-0.12, 0.12)
    x = x + torch.randn_like(x) * between(0, 0.06)
    return x.clamp(-1, 1), turned


def _luma(pictures: Tensor) -> Tensor:
    weights = torch.tensor(LUMA, device=pictures.device).view(1, 3, 1, 1)
    return (pictures * weights).sum(1, keepdim=True)


def scene_loss(forward: Forward, pictures: Tensor, labels: Tensor) -> Tensor:
    """Mean loss of a batch; labels as of `scene_labels`."""
    pictures, turned = varied(pictures)
    labels = torch.where(turned[:, None], labels[:, [0, 1, 2, 5, 4, 3, 8, 7, 6]], labels)
    dark = int(len(pictures) * NOIR_SHARE)
    if dark:
        pictures[:dark] = noir((pictures[:dark] + 1) * 127.5)
        labels[:dark, [0, 2, 6, 7, 8]] = UNASKED
    read = forward(pictures)
    return (
        0.5 * _cross_entropy(read.style, labels[:, 0])
        + _cross_entropy(read.setting, labels[:, 1])
        + 0.5 * _cross_entropy(read.time, labels[:, 2])
        + 3 * _cross_entropy(read.nouns, labels[:, 3:6])
        + _cross_entropy(read.colours, labels[:, 6:9])
    )


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """logits: (..., classes). The mean over those asked for; 0 when none is."""
    sums = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
    return sums / (labels != UNASKED).sum().clamp(min=1)


def who_loss(forward: Forward, pictures: Tensor, labels: Tensor) -> Tensor:
    return _cross_entropy(forward(varied(pictures)[0]), labels[:, 0])


# Training.


def train_reader(
    pool: Path, seconds: float, device: torch.device, most: int | None = None
) -> Reader:
    """Learns from the chunks of scenes, also those that appear meanwhile.

    most: steps, after which to stop early.
    """
    supply = Supply(pool, ("scene",), scene_labels, device)
    with supply.feed:
        return _trained(Reader(), supply, scene_loss, seconds, most)


def train_who(pool: Path, seconds: float, device: torch.device, most: int | None = None) -> Who:
    """Learns from the chunks of people, with as many scenes that show none of them."""
    supply = Supply(pool, ("people", "scene"), who_labels, device)
    with supply.feed:
        return _trained(Who(), supply, who_loss, seconds, most)


def train_readers(
    pool: Path, out: Path, seconds: float, most: int | None = None
) -> dict[str, float]:
    """Both, two thirds of the time for the first, into out/reader.safetensors and
    out/who.safetensors. Returns their sizes and the seconds.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reader = train_reader(pool, seconds * 2 / 3, device, most)
    who = train_who(pool, seconds / 3, device, most)
    save(reader, out / "reader.safetensors")
    save(who, out / "who.safetensors")
    return {
        "seconds": seconds,
        "parameters of the reader": sum(each.numel() for each in reader.parameters()),
        "parameters of who": sum(each.numel() for each in who.parameters()),
    }


def _trained(
    model: Model,
    supply: Supply,
    loss_of: Callable[[Forward, Tensor, Tensor], Tensor],
    seconds: float,
    most: int | None,
) -> Model:
    """Train for so many seconds from the first batch on, and at most so many steps."""
    device, cuda = supply.device, supply.device.type == "cuda"
    model = model.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY, fused=cuda)

    def forward(pictures: Tensor) -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            return model(pictures.contiguous(memory_format=torch.channels_last))

    _await(supply)
    began, step, told = time.monotonic(), 0, 0.0
    while (done := (time.monotonic() - began) / seconds) < 1 and step != most:
        supply.take_in()
        batch = supply.draw(256 if cuda else 32)
        assert batch
        rate = RATE * min(1.0, (done + 1e-3) / WARMUP) * math.cos(math.pi / 2 * done) ** 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(forward, *batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if done >= told:
            told += 1 / 12
            name = type(model).__name__.lower()
            say(f"{name}, step {step}: loss {loss.item():.3f}, {supply.count} scenes")
    return model.eval().requires_grad_(False)


def _await(supply: Supply) -> None:
    """Until there is a first batch."""
    began = time.monotonic()
    while supply.draw(len(supply.kinds)) is None:
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"{supply.feed.pool.folder}: no scenes come; fill it with pool.py.")
        time.sleep(0.1)
        supply.take_in()


# Reading.


@dataclass(frozen=True)
class Reading:
    """What a reader saw in n pictures: indices into the tables of `vocabulary`, on the CPU.

    style, setting, time, colour: (n,); nouns: (n, places), the likeliest that is somebody;
    certainty: (n, places), its log-probability; presence: (n, places), that of anybody.
    """

    style: Tensor
    setting: Tensor
    time: Tensor
    nouns: Tensor
    certainty: Tensor
    presence: Tensor
    colour: Tensor

    @property
    def subject(self) -> Tensor:
        """The likeliest noun, wherever it is, (n,)."""
        return self.nouns.gather(1, self.certainty.argmax(1, keepdim=True))[:, 0]

    @property
    def side(self) -> Tensor:
        """The place of whoever is there, (n,)."""
        return self.presence.argmax(1)


def read(reader: Reader, pictures: Tensor) -> Reading:
    """pictures: (n, 3, h, w), uint8, anywhere."""
    parts = [_reading(reader(batch)) for batch in _batches(reader, pictures)]
    fields = Reading.__dataclass_fields__
    return Reading(**{name: torch.cat([getattr(p, name) for p in parts]) for name in fields})


def recognised(who: Who, pictures: Tensor) -> Tensor:
    """Indices into `NAMES`, or `NO_ONE`, (n,). pictures: (n, 3, h, w), uint8."""
    return torch.cat([who(batch).argmax(1).cpu() for batch in _batches(who, pictures)])


def _batches(model: nn.Module, pictures: Tensor) -> Iterator[Tensor]:
    device = next(model.parameters()).device
    for part in pictures.split(128):
        yield as_values(part.to(device))


def _reading(logits: Logits) -> Reading:
    nouns = logits.nouns.log_softmax(2)
    certainty, which = nouns[..., :-1].max(2)
    shirts = logits.colours.log_softmax(2)[..., :-1].amax(1)
    return Reading(
        style=logits.style.argmax(1).cpu(),
        setting=logits.setting.argmax(1).cpu(),
        time=logits.time.argmax(1).cpu(),
        nouns=which.cpu(),
        certainty=certainty.cpu(),
        presence=nouns[..., :-1].logsumexp(2).cpu(),
        colour=shirts.argmax(1).cpu(),
    )


@dataclass(frozen=True)
class Share:
    """Of `asked` questions, so many were answered as the facts say."""

    right: int
    asked: int

    @property
    def value(self) -> float | None:
        return self.right / self.asked if self.asked else None


def score(reading: Reading, facts: Sequence[Facts]) -> dict[str, Share]:
    """How much of what the facts say was read, by attribute. Who is no subject is never read."""
    answers: dict[str, list[bool]] = {name: [] for name in ATTRIBUTES}
    values = {name: getattr(reading, name).tolist() for name in ("style", "setting", "time")}
    subjects, nouns = reading.subject.tolist(), reading.nouns.tolist()
    sides, colours = reading.side.tolist(), reading.colour.tolist()
    for n, each in enumerate(facts):
        answers["style"].append(values["style"][n] == _index(STYLES)[each.style])
        answers["setting"].append(values["setting"][n] == _index(SETTINGS)[each.setting])
        if each.setting not in TIMELESS:
            answers["time"].append(values["time"][n] == _index(TIMES)[each.time])
        if len(each.subjects) > 1:
            for subject in each.subjects:
                seen = nouns[n][_index(PLACES)[subject.place]]
                answers["subject of two"].append(seen == _index(SUBJECTS)[subject.noun])
            continue
        only = each.subjects[0]
        answers["subject alone"].append(subjects[n] == _index(SUBJECTS).get(only.noun))
        if has_shirt(only):
            answers["shirt colour"].append(colours[n] == _index(COLOURS)[only.colour])
        if only.place != "centre":
            answers["side"].append(sides[n] == _index(PLACES)[only.place])
    answers["subject"] = answers["subject alone"] + answers["subject of two"]
    return {name: Share(sum(given), len(given)) for name, given in answers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a reader on a pool of composed scenes.")
    parser.add_argument("pool", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--who", action="store_true", help="the one that tells people apart")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = train_who if arguments.who else train_reader
    save(train(arguments.pool, arguments.seconds, device), arguments.file)


if __name__ == "__main__":
    main()
