"""Trains the readers on composed scenes, never on a drawn picture.

    python scripts/pocket/reader_stage.py POOL FILE [--seconds 60] [--who]

trains one of them on the scenes of a pool (`pool.py`): the plain one, or the one of the people.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from captions import Facts
from lines import blurred
from noir import luma, noir
from people import NAMES
from person_scenes import SHOWN_SETTINGS
from plainly import a_time, plainly
from pool import Chunk
from reader import (
    NO_ONE,
    NOBODY,
    UNSHIRTED,
    Model,
    Reader,
    Who,
    has_shirt,
    index_of,
    read,
    save,
    score,
)
from scenes import HOLD_OUT_SEED
from shelves import Supply
from torch import Tensor, nn
from torch.nn import functional
from training import say
from unseen import gathered, unseen_scene
from vocabulary import COLOURS, PLACES, SETTINGS, SIZES, STYLES, SUBJECTS, TIMELESS, TIMES

UNASKED = -100
"""A label that the loss leaves out."""
RATE, DECAY = 2e-3, 0.05
WARMUP = 0.04
"""Share of the time in which the rate rises."""
READER_SHARE = 0.8
"""Of the time of both; to tell three people apart is soon learnt."""
EXAMINED = 256
"""Unseen scenes that are read in the end."""
NOIR_SHARE = 1 / 3
"""Of the pictures: learnt in the noir look, where colours and light cannot be told. At 0.1 it read
six subjects of ten from them, where it knew all in colour."""

Forward = Callable[[Tensor], Any]
"""A model under training, for pictures (n, 3, h, w), -1 to 1."""


def scene_labels(chunk: Chunk) -> Tensor:
    """Style, setting, time, a noun for each place, a shirt for each place: (n, 9), int64."""
    return torch.tensor([_labels(facts) for facts in chunk.facts])


def _labels(facts: Facts) -> list[int]:
    daytime = UNASKED if facts.setting in TIMELESS else index_of(TIMES)[facts.time]
    nouns, shirts = [NOBODY] * len(PLACES), [UNSHIRTED] * len(PLACES)
    for subject in facts.subjects:
        place = index_of(PLACES)[subject.place]
        nouns[place] = index_of(SUBJECTS)[subject.noun]
        if has_shirt(subject):
            shirts[place] = index_of(COLOURS)[subject.colour]
    return [
        index_of(STYLES)[facts.style],
        index_of(SETTINGS)[facts.setting],
        daytime,
        *nouns,
        *shirts,
    ]


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
    grey = luma(x)
    x = torch.lerp(grey, x, between(0.8, 1.2)) * between(0.85, 1.15) + between(-0.12, 0.12)
    x = x + torch.randn_like(x) * between(0, 0.06)
    return x.clamp(-1, 1), turned


def scene_loss(forward: Forward, pictures: Tensor, labels: Tensor) -> Tensor:
    """Mean loss of a batch; labels as of `scene_labels`."""
    pictures, turned = varied(pictures)
    labels = torch.where(turned[:, None], labels[:, [0, 1, 2, 5, 4, 3, 8, 7, 6]], labels)
    dark = int(len(pictures) * NOIR_SHARE)
    if dark:
        pictures[:dark] = noir((pictures[:dark] + 1) * 127.5)
        labels[:dark, [0, 2, 6, 7, 8]] = UNASKED
    seen = forward(pictures)
    return (
        0.5 * _cross_entropy(seen.style, labels[:, 0])
        + _cross_entropy(seen.setting, labels[:, 1])
        + 0.5 * _cross_entropy(seen.time, labels[:, 2])
        + 3 * _cross_entropy(seen.nouns, labels[:, 3:6])
        + _cross_entropy(seen.colours, labels[:, 6:9])
    )


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """logits: (..., classes). The mean over those asked for; 0 when none is."""
    sums = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
    return sums / (labels != UNASKED).sum().clamp(min=1)


def who_loss(forward: Forward, pictures: Tensor, labels: Tensor) -> Tensor:
    return _cross_entropy(forward(varied(pictures)[0]), labels[:, 0])


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
    """Both, into out/reader.safetensors and out/who.safetensors.

    Returns the seconds, and how much of scenes that training never shows is read rightly, of the
    attribute that is read worst.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.monotonic()
    reader = train_reader(pool, seconds * READER_SHARE, device, most)
    who = train_who(pool, seconds * (1 - READER_SHARE), device, most)
    save(reader, out / "reader.safetensors")
    save(who, out / "who.safetensors")
    took = round(time.monotonic() - began)
    shares = examined(reader, EXAMINED if most is None else 2)
    say(f"reader: after {took} s it reads of unseen scenes {shares}")
    return {
        "seconds": took,
        "worst attribute of unseen scenes, %": round(100 * min(shares.values()), 1),
    }


def examined(reader: Reader, count: int) -> dict[str, float]:
    """Shares of what the reader reads rightly, by attribute, of so many unseen scenes."""
    seeds = range(HOLD_OUT_SEED, HOLD_OUT_SEED + count)
    scenes = gathered([unseen_scene("unseen", SIZES[0], seed) for seed in seeds])
    shares = score(read(reader, scenes.pictures), scenes.facts)
    return {
        name: round(share.right / share.asked, 3) for name, share in shares.items() if share.asked
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

    supply.wait()
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a reader on a pool of composed scenes.")
    parser.add_argument("pool", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=a_time, default=60)
    parser.add_argument("--who", action="store_true", help="the one that tells people apart")
    arguments = parser.parse_args()
    if arguments.file.is_dir():
        parser.error(f"{arguments.file} is a folder")
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = train_who if arguments.who else train_reader
    save(train(arguments.pool, arguments.seconds, device), arguments.file)


if __name__ == "__main__":
    with plainly():
        main()
