"""The readers: small networks that read what a picture shows from its pixels.

`Reader` reads style, setting, time and, for each place, who stands there in which shirt; `Who`
tells the people apart. `reader_stage.py` trains both, on composed scenes alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from captions import Facts, Subject
from people import NAMES
from pixels import as_values
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from vocabulary import COLOURS, PLACES, SETTINGS, STYLES, SUBJECTS, TIMELESS, TIMES

WIDTHS = (32, 64, 96, 128)
"""Channels of the stages; the sides are a fourth, an eighth, a sixteenth and a sixteenth."""
HIDDEN = 160
NOBODY, UNSHIRTED = len(SUBJECTS), len(COLOURS)
NO_ONE = len(NAMES)
"""None of the people."""
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
    try:
        model.load_state_dict(load_file(file))
    except RuntimeError as error:
        raise SystemExit(f"{file} does not hold the weights of a {kind.__name__}.") from error
    return model.eval().requires_grad_(False).to(device)


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


def index_of(words: Sequence[str] | dict) -> dict[str, int]:
    """Where each word stands."""
    return _numbered(tuple(words))


@cache
def _numbered(words: tuple[str, ...]) -> dict[str, int]:
    return {word: n for n, word in enumerate(words)}


def has_shirt(subject: Subject) -> bool:
    return subject.is_figure and subject.colour is not None


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
        answers["style"].append(values["style"][n] == index_of(STYLES)[each.style])
        answers["setting"].append(values["setting"][n] == index_of(SETTINGS)[each.setting])
        if each.setting not in TIMELESS:
            answers["time"].append(values["time"][n] == index_of(TIMES)[each.time])
        if len(each.subjects) > 1:
            for subject in each.subjects:
                seen = nouns[n][index_of(PLACES)[subject.place]]
                answers["subject of two"].append(seen == index_of(SUBJECTS)[subject.noun])
            continue
        only = each.subjects[0]
        answers["subject alone"].append(subjects[n] == index_of(SUBJECTS).get(only.noun))
        if has_shirt(only):
            answers["shirt colour"].append(colours[n] == index_of(COLOURS)[only.colour])
        if only.place != "centre":
            answers["side"].append(sides[n] == index_of(PLACES)[only.place])
    answers["subject"] = answers["subject alone"] + answers["subject of two"]
    return {name: Share(sum(given), len(given)) for name, given in answers.items()}
