"""What a batch needs from the disk and the processor, read while the device draws another."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from comicgen import beside
from comicgen.diffusion.control import read_control_image
from comicgen.diffusion.lora import LoraChanges, read_changes
from comicgen.diffusion.sampling import draw_noise
from comicgen.diffusion.schedulers import SAMPLERS
from comicgen.diffusion.unchanged import check_unchanged
from comicgen.errors import CandidateError
from comicgen.plan import Batch, Candidate
from comicgen.sizes import Size
from comicgen.storyboard import Lora
from comicgen.weights import ModelFolder


@dataclass(frozen=True, slots=True)
class Read:
    """For each lane its control image (1, 3, H, W) float32 on the CPU, None without control or
    candidate, or why it cannot be read; the noise of `draw_noise`, where empty lanes have seed 0;
    and what LoRAs change that were read ahead, to be cleared by who has used it."""

    images: Sequence[Tensor | CandidateError | None]
    noise: Tensor
    loras: list[LoraChanges]


class _Ahead(NamedTuple):
    """A batch that is being read, with so many new LoRAs."""

    batch: Batch
    loras: int
    read: Future[Read]


class Reading:
    """Reads one batch ahead, in a thread beside the one that draws."""

    def __init__(
        self, latent_shape: Callable[[Size], tuple[int, int, int]], model: ModelFolder
    ) -> None:
        self._latent_shape = latent_shape
        self._model = model
        self._current: tuple[Batch, Read] | None = None
        self._ahead: _Ahead | None = None

    def has(self, batch: Batch) -> bool:
        """Whether `read` would wait for nothing, nor who uses it for a LoRA's file."""
        if self._ahead is None or self._ahead.batch is not batch or not self._ahead.read.done():
            return False
        failed = self._ahead.read.exception()
        return not failed and len(self._ahead.read.result().loras) == self._ahead.loras

    def read(self, batch: Batch, upcoming: Sequence[Batch]) -> Read:
        """What this batch needs, until `forget`; the next one is begun once this one is there."""
        if self._current is None or self._current[0] is not batch:
            self._current = batch, self._taken(batch)
            if upcoming and not (self._ahead and self._ahead.batch is upcoming[0]):
                new = upcoming[0].loras if upcoming[0].loras != batch.loras else ()
                self._ahead = self._begin(upcoming[0], new)
        return self._current[1]

    def forget(self) -> None:
        """Let go what the last batch needed."""
        self._current = None

    def _taken(self, batch: Batch) -> Read:
        if self._ahead is None or self._ahead.batch is not batch:
            return self._read(batch)
        ahead, self._ahead = self._ahead, None
        return ahead.read.result()

    def _begin(self, batch: Batch, loras: Sequence[Lora]) -> _Ahead | None:
        """Read a batch in a thread that does not keep the process, should a disk never answer.

        None where the system has no thread left: then it is read in its own turn.
        """
        found = beside.start(partial(self._read, batch, loras), "reading", daemon=True)
        return _Ahead(batch, len(loras), found) if found else None

    def _read(self, batch: Batch, loras: Sequence[Lora] = ()) -> Read:
        draws = 1 + batch.steps if SAMPLERS[batch.sampler].noisy else 1
        seeds = [lane.seed if lane else 0 for lane in batch.lanes]
        images = [_control_image(lane) if lane else None for lane in batch.lanes]
        noise = draw_noise(seeds, self._latent_shape(batch.bucket.size), draws)
        return Read(images, noise, self._changes(loras))

    def _changes(self, loras: Sequence[Lora]) -> list[LoraChanges]:
        """Nothing where not all can be read, or memory is short: the batch reads them itself."""
        try:
            return [read_changes(lora, self._model) for lora in loras]
        except BaseException:  # noqa: BLE001 - a library panics past Exception without memory
            return []


def _control_image(candidate: Candidate) -> Tensor | CandidateError | None:
    control = candidate.panel.control
    if control is None:
        return None
    try:
        image = read_control_image(control.image, candidate.panel.size)
        check_unchanged(control.image, control.image_digest)
    except CandidateError as error:
        return error
    return image
