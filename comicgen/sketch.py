"""The other engine: coloured waves instead of pictures, quickly, the same for the same fields.

Panels differ in palette, candidates of a panel in pattern. It keeps the seam honest, and stands
in for a model wherever none is needed: in tests, and when planning and resuming are timed.
"""

import hashlib
from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from comicgen.engine import Drawn, Event
from comicgen.plan import Batch, Candidate

WAVES = 4


class Sketch:
    """Draws from prompt, seed and size alone."""

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Yield one `Drawn` for each candidate of the batch."""
        for candidate in batch.candidates:
            begun = perf_counter()
            image = sketch(candidate)
            yield Drawn(candidate, image, perf_counter() - begun)


def sketch(candidate: Candidate) -> Image.Image:
    """An RGB picture in the candidate's size: two colours of its prompt, waves of its seed."""
    size = candidate.panel.size
    prompt = hashlib.sha256(candidate.panel.prompt.encode()).digest()
    colours = np.frombuffer(prompt[:6], np.uint8).reshape(2, 3).astype(np.float32)
    mix = _waves(candidate.seed, size.width, size.height)[..., None]
    return Image.fromarray((colours[0] * mix + colours[1] * (1 - mix)).astype(np.uint8))


def _waves(seed: int, width: int, height: int) -> NDArray[np.float32]:
    """Plane waves of random direction, length and phase, added up and scaled to 0..1."""
    chance = np.random.default_rng(seed)
    x = np.linspace(-1, 1, width, dtype=np.float32)
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    total = np.zeros((height, width), np.float32)
    for across, down, phase in chance.uniform(-8, 8, (WAVES, 3)).astype(np.float32):
        total += np.sin(across * x + down * y + phase)
    return total * np.float32(0.5 / WAVES) + np.float32(0.5)
