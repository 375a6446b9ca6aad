"""From batches to latents: each batch begins before the pictures of the one before are taken."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor

from comicgen.diffusion.clock import Clock
from comicgen.diffusion.conditioning import Lane
from comicgen.diffusion.lora import LoraWeights
from comicgen.diffusion.models import Components
from comicgen.diffusion.painter import Painter
from comicgen.diffusion.reading import Read, Reading
from comicgen.diffusion.sampling import Sampling
from comicgen.diffusion.text import Embedding, TextEncoding
from comicgen.diffusion.workplace import Workplace
from comicgen.engine import Failed
from comicgen.errors import CandidateError
from comicgen.plan import Batch, Candidate

STEPS_AHEAD = 3
"""As many of the next batch as a GPU needs while pictures are taken. An interruption loses them."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A batch of which nothing is missing but steps; without any where no lane can be drawn.

    `captured` are the seconds of all captures before it.
    """

    batch: Batch
    failed: list[Failed]
    lanes: list[Lane | None]
    steps: Sampling | None
    clock: Clock
    captured: float


@dataclass(frozen=True, slots=True)
class Denoised:
    """The candidates that failed, and the latents (1, C, h, w) of the others.

    The clock has run while the device denoised them, and so many seconds captured graphs.
    """

    failed: list[Failed]
    latents: list[tuple[Candidate, Tensor]]
    clock: Clock
    captured: float = 0.0


class Denoising:
    """Denoises batches with one model: sets its LoRAs, reads its texts, takes the steps."""

    def __init__(
        self, model: Components, text: TextEncoding, painter: Painter, place: Workplace
    ) -> None:
        """`model`, whose weights LoRAs are written into, is its own from now on."""
        self.reading = Reading(model.latent_shape, model.folder)
        encoders = {"text_encoder": model.text_encoder, "text_encoder_2": model.text_encoder_2}
        self._loras = LoraWeights({"unet": model.unet, **encoders}, model.folder)
        self._zeros_for_none = model.folder.force_zeros_for_empty_prompt
        self._text = text
        self._painter = painter
        self._place = place
        self._ahead = STEPS_AHEAD if place.stream else 0
        self._next: _Begun | None = None

    def drop_next(self) -> None:
        """Forget what was begun; it begins again in its own turn."""
        self._next = None

    def denoise(self, batch: Batch, read: Read) -> Denoised:
        """The latents of a batch, whose first steps may have been taken ahead.

        Raises:
            CandidateError: what the batch asks for cannot be had.
        """
        begun, self._next = self._next, None
        if begun is None or begun.batch is not batch:
            begun = self._begin(batch, read)
        else:
            begun.clock.mark()
        if begun.steps is None:
            return Denoised(begun.failed, [], begun.clock)
        latents = begun.steps.take()
        begun.clock.mark()
        pairs = enumerate(zip(batch.lanes, begun.lanes, strict=True))
        own = [(each, latents[i : i + 1]) for i, (each, lane) in pairs if each and lane]
        captured = self._painter.graphs.seconds - begun.captured
        return Denoised(begun.failed, own, begun.clock, captured)

    def begin_next(self, upcoming: Sequence[Batch]) -> None:
        """Give a GPU the next batch's first steps, to do while this one's pictures are taken.

        Only where no file, no ControlNet and no capture must be waited for. Another LoRA set waits
        for this one's pictures to be decoded. What fails here fails again in its own batch, and
        is told there.
        """
        if not (self._ahead and upcoming):
            return
        batch = upcoming[0]
        if self.reading.has(batch) and self._painter.is_ready(batch):
            with suppress(CandidateError), self._place.working():
                begun = self._begin(batch, self.reading.read(batch, upcoming[1:]))
                if begun.steps:
                    begun.steps.take(self._ahead)
                begun.clock.mark()
                self._next = begun

    def _begin(self, batch: Batch, read: Read) -> _Begun:
        """All that comes before the first step of those candidates that can be drawn."""
        clock, captured = Clock(self._place.device), self._painter.graphs.seconds
        clock.mark()
        self._loras.set(batch.loras, read.loras)
        read.loras.clear()  # the next set is being read
        lanes: list[Lane | None] = []
        failed: list[Failed] = []
        for candidate, image in zip(batch.lanes, read.images, strict=True):
            if candidate is None:
                lanes.append(None)
            elif isinstance(image, CandidateError):
                failed.append(Failed(candidate, str(image)))
                lanes.append(None)
            else:
                lanes.append(self._lane(candidate, image))
        steps = self._painter.paint(batch, lanes, read.noise) if any(lanes) else None
        return _Begun(batch, failed, lanes, steps, clock, captured)

    def _lane(self, candidate: Candidate, image: Tensor | None) -> Lane:
        panel, control = candidate.panel, candidate.panel.control
        if panel.negative is None and self._zeros_for_none:
            negative = self._text.zeros()
        else:
            negative = self._embed(panel.negative or "")
        weight = control.weight if control else 0.0
        return Lane(self._embed(panel.prompt), negative, panel.guidance, image, weight)

    def _embed(self, text: str) -> Embedding:
        return self._text.encode(text, self._loras.text_key)
