"""Composed scenes that training never shows: what a finished model is measured with."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from random import Random
from threading import Thread

import numpy as np
import torch
from captions import Facts, Share, imagine
from people import NAMES
from person_scenes import HELD_OUT_SETTINGS, compose_person, imagine_person
from scenes import HOLD_OUT_SEED, Scene, compose
from torch import Tensor
from vocabulary import SIZES

SIZE = SIZES[0]
"""Width and height of all scenes but those for the section `sizes`."""
SEEDS_OF_A_SET = 1_000_000


@dataclass(frozen=True)
class Scenes:
    """Composed pictures (n, 3, h, w), uint8, with what they show and their captions."""

    pictures: Tensor
    captions: list[str]
    facts: list[Facts]

    @property
    def size(self) -> tuple[int, int]:
        return self.pictures.shape[3], self.pictures.shape[2]

    @property
    def alone(self) -> list[int]:
        """Which have one subject."""
        return [n for n, facts in enumerate(self.facts) if len(facts.subjects) == 1]


def composed(count: int, wanted: Iterable[str], people: Iterable[str]) -> dict[str, Scenes]:
    """`count` held-out scenes of each kind that the sections need, by the kind's name.

    people: whom the folder holds LoRAs of. Made by processes of their own, one on each core, so
    this comes before anything touches the GPU.
    """
    makers: dict[str, Callable[[int], Scene]] = {"any": partial(unseen_scene, "unseen", SIZE)}
    if "pairs" in wanted:
        makers["never together"] = partial(unseen_scene, "apart", SIZE)
    if "sizes" in wanted:
        makers |= {named(size): partial(unseen_scene, "unseen", size) for size in SIZES[1:]}
    if "people" in wanted:
        makers |= {name: partial(unseen_person, name, SIZE) for name in people}
    cores = len(os.sched_getaffinity(0))
    at_once = max(1, min(16, count * len(makers) // (4 * cores)))
    with ProcessPoolExecutor(
        cores, get_context("fork"), initializer=_end_with, initargs=(os.getpid(),)
    ) as workers:
        try:
            made = {
                kind: workers.map(make, _seeds(kind, count), chunksize=at_once)
                for kind, make in makers.items()
            }
            return {kind: gathered(list(scenes)) for kind, scenes in made.items()}
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def unseen_scene(share: Share, size: tuple[int, int], seed: int) -> Scene:
    return compose(seed, size, imagine(_facts_of(seed), size, share))


def unseen_person(name: str, size: tuple[int, int], seed: int) -> Scene:
    return compose_person(seed, size, imagine_person(_facts_of(seed), name, HELD_OUT_SETTINGS))


def _facts_of(seed: int) -> Random:
    """Other numbers than those by which the scene is drawn: else the two would hang together."""
    return Random(f"facts of {seed}")


def _end_with(parent: int) -> None:
    """Let this process end soon after its parent, even if that is killed, and not before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the parent too

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _seeds(kind: str, count: int) -> range:
    """Each kind has its own, whichever others are made."""
    kinds = ("any", "never together", *map(named, SIZES[1:]), *NAMES)
    first = HOLD_OUT_SEED + kinds.index(kind) * SEEDS_OF_A_SET
    return range(first, first + count)


def gathered(scenes: list[Scene]) -> Scenes:
    pictures = np.stack([np.asarray(scene.picture) for scene in scenes])
    return Scenes(
        torch.from_numpy(pictures).permute(0, 3, 1, 2),
        [scene.caption for scene in scenes],
        [scene.facts for scene in scenes],
    )


def named(size: tuple[int, int]) -> str:
    """For example `256x192`."""
    return f"{size[0]}x{size[1]}"
