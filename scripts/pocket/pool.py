"""A folder of composed scenes, filled by worker processes and read by whoever trains.

    python scripts/pocket/pool.py DIR [--workers 14] [--scenes 250000] [--first SEED]

A chunk is one `.npz` file of scenes of one kind and size. Workers stop when the folder holds enough
scenes, or a file called `stop`; those that train.py starts also when it ends.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from captions import Facts, Subject
from person_scenes import compose_person
from plainly import plainly
from ranks import mine
from scenes import HOLD_OUT_SEED, compose
from vocabulary import SIZES

CHUNK = 64
"""Scenes in a file."""
SHARES = dict(zip(SIZES, (6, 3, 3, 3, 3), strict=True))
"""How often each size comes."""
PEOPLE_EVERY = 16
"""One chunk in so many shows the people that LoRAs teach; the VAE should know them too."""
SEEDS_OF_A_WORKER = 10_000_000


@dataclass(frozen=True)
class Chunk:
    """Scenes of one kind (`scene` or `people`) and size. pictures: (n, height, width, 3), uint8."""

    kind: str
    pictures: npt.NDArray[np.uint8]
    captions: list[str]
    facts: list[Facts]

    @property
    def size(self) -> tuple[int, int]:
        return self.pictures.shape[2], self.pictures.shape[1]

    def chosen(self, index: Sequence[int]) -> "Chunk":
        """Some of the scenes."""
        return Chunk(
            self.kind,
            self.pictures[index],
            [self.captions[n] for n in index],
            [self.facts[n] for n in index],
        )

    def write(self, file: Path) -> None:
        text = json.dumps([self.kind, self.captions, [asdict(facts) for facts in self.facts]])
        part = file.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as opened:
            np.savez_compressed(opened, pictures=self.pictures, text=np.array(text))
        part.rename(file)

    @classmethod
    def read(cls, file: Path) -> "Chunk":
        with file.open("rb") as opened, np.load(opened) as arrays:
            kind, captions, facts = json.loads(str(arrays["text"]))
            return cls(kind, arrays["pictures"], captions, [_facts(each) for each in facts])


def _facts(values: dict) -> Facts:
    subjects = tuple(Subject(**each) for each in values.pop("subjects"))
    return Facts(**values, subjects=subjects)


def compose_chunk(seed: int, kind: str, size: tuple[int, int], count: int = CHUNK) -> Chunk:
    """`count` scenes with the seeds from `seed` on."""
    make = compose_person if kind == "people" else compose
    scenes = [make(seed + n, size) for n in range(count)]
    return Chunk(
        kind,
        np.stack([np.asarray(scene.picture) for scene in scenes]),
        [scene.caption for scene in scenes],
        [scene.facts for scene in scenes],
    )


class Pool:
    """Reads each chunk of a folder (of one kind, or of all) once, as the files appear."""

    def __init__(self, folder: Path, kind: str = "*", shared: bool = True) -> None:
        """shared: with the processes that train together; each has files of its own."""
        self.folder, self.kind, self.shared = folder, kind, shared
        self.seen: set[str] = set()

    def fresh(self, most: int | None = None) -> Iterator[Chunk]:
        """The chunks (at most so many) that were not read before; decompressed in threads."""
        files = sorted(self.folder.glob(f"{self.kind}-*.npz"))
        ours = [each for each in files if not self.shared or mine(each.name)]
        files = [each for each in ours if each.name not in self.seen][:most]
        self.seen.update(each.name for each in files)
        with ThreadPoolExecutor(6) as threads:
            yield from threads.map(Chunk.read, files)


def start_workers(
    folder: Path,
    workers: int,
    scenes: int,
    first: int = 0,
    people_every: int = PEOPLE_EVERY,
    outlive: bool = True,
) -> None:
    """Start processes that compose until the folder is full, or else the caller has ended."""
    if not 0 <= first <= HOLD_OUT_SEED - workers * SEEDS_OF_A_WORKER:
        raise SystemExit(
            f"--first {first} does not do: seeds are counted from 0, and scenes from seed "
            f"{HOLD_OUT_SEED:,} on are kept for judging."
        )
    folder.mkdir(parents=True, exist_ok=True)
    if workers:
        (folder / "stop").unlink(missing_ok=True)
    for n in range(workers):
        seed = first + n * SEEDS_OF_A_WORKER
        subprocess.Popen(
            [
                *("nice", sys.executable, __file__, str(folder), f"--seed={seed}"),
                *(f"--scenes={scenes}", f"--people-every={people_every}"),
                *([] if outlive else [f"--parent={os.getpid()}"]),
            ],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
        )


def _work(folder: Path, seed: int, scenes: int, people_every: int, parent: int | None) -> None:
    """One worker: chunks of random sizes, by their shares; not again what is there."""
    for n in range(SEEDS_OF_A_WORKER // CHUNK):
        enough = len(list(folder.glob("*.npz"))) * CHUNK >= scenes
        orphaned = parent not in (None, os.getppid())
        if enough or orphaned or (folder / "stop").exists():
            break
        kind = "people" if n % people_every == people_every - 1 else "scene"
        file = folder / f"{kind}-{n:05}-{seed:010}.npz"
        if not file.exists():
            size = Random(f"{seed} {n}").choices([*SHARES], [*SHARES.values()])[0]
            compose_chunk(seed + n * CHUNK, kind, size).write(file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill a folder with composed scenes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--scenes", type=int, default=250_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first scene")
    parser.add_argument("--people-every", type=int, default=PEOPLE_EVERY)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seed is None:
        start_workers(
            arguments.folder,
            arguments.workers,
            arguments.scenes,
            arguments.first,
            arguments.people_every,
        )
    else:
        _work(
            arguments.folder,
            arguments.seed,
            arguments.scenes,
            arguments.people_every,
            arguments.parent,
        )


if __name__ == "__main__":
    with plainly():
        main()
