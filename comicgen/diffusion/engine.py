"""The engine that draws: a diffusion model on one device, one batch after the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Self, TypeVar

import torch
from torch import Tensor

from comicgen.diffusion.attention import choose
from comicgen.diffusion.conditioning import Lane
from comicgen.diffusion.decode import Decoded, Decoder
from comicgen.diffusion.graph_cache import GraphCache
from comicgen.diffusion.lean import why_without_kernels
from comicgen.diffusion.lora import LoraWeights
from comicgen.diffusion.memory import Memory, is_out_of_memory
from comicgen.diffusion.models import PRECISIONS, REFUSALS, Components, load_model
from comicgen.diffusion.painter import Painter, ahead
from comicgen.diffusion.reading import Read, Reading
from comicgen.diffusion.text import Embedding, TextEncoding
from comicgen.diffusion.unchanged import check_unchanged
from comicgen.engine import Drawn, Event, Failed, GraphOptions, Note
from comicgen.environment import Environment
from comicgen.errors import CandidateError, DeviceLost, InputError, MachineError, first_line
from comicgen.plan import Batch, Candidate
from comicgen.prompts import load_tokenizers
from comicgen.storyboard import Model

_Result = TypeVar("_Result")

_GRAPHS = GraphOptions()


class DiffusionEngine:
    """Draws batches with the networks of one model, which it holds on its device."""

    def __init__(self, model: Components, options: GraphOptions = _GRAPHS) -> None:
        """`model` is the engine's own from now on; graphs need a GPU."""
        self._model = model
        self._device = model.device
        self._stream = _stream(model.device)
        encoders = {"text_encoder": model.text_encoder, "text_encoder_2": model.text_encoder_2}
        self._loras = LoraWeights({"unet": model.unet, **encoders}, model.folder)
        self._text = TextEncoding(
            load_tokenizers(model.folder.folder),
            (model.text_encoder, model.text_encoder_2),
            model.device,
            model.dtype,
        )
        self._decoder = Decoder(model.vae)
        self._memory = Memory(model.device) if self._stream else None
        self._attention = choose(model.unet)
        self._painter = Painter(
            model,
            self._text.zeros(),
            self._attention,
            GraphCache(
                self._stream if options.enabled else None,
                self._memory,
                self._attention.name,
                options.debug,
            ),
        )
        self._precapture = options.precapture
        self._begun = False
        self._reading = Reading(model.latent_shape, model.folder)

    @classmethod
    def open(cls, model: Model, environment: Environment, options: GraphOptions = _GRAPHS) -> Self:
        """Load a model onto the device, and in the precision, of an environment.

        Raises:
            InputError: the model's folder is incomplete or broken, or has changed since it was
                read for the storyboard.
            MachineError: the model does not fit into the device's memory.
        """
        place = torch.device(environment.device)
        if place.type == "cuda":
            place = torch.device("cuda", place.index or 0)
        else:
            torch.set_num_threads(environment.threads)
        try:
            loaded = load_model(model.folder, place, PRECISIONS[environment.precision])
            check_unchanged(model.folder, model.digest, loaded.folder.files)
            return cls(loaded, options)
        except CandidateError as error:
            raise InputError(str(error)) from error
        except torch.OutOfMemoryError as error:
            raise MachineError(
                f"{model.written} does not fit into the memory of {place}; "
                "close what else uses it, or choose another --device"
            ) from error
        except RuntimeError as error:
            raise MachineError(
                f"{place} cannot be used ({first_line(error)}); "
                "mend its driver, or use --device cpu"
            ) from error

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Yield a `Drawn` or a `Failed` for each candidate; see `comicgen.engine.Engine`.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        self._capture_ahead(batch, upcoming)
        started, captured = time.perf_counter(), self._painter.graphs.seconds
        try:
            with self._working():
                read = self._reading.read(batch, upcoming)
                latents, failed = self._roomy(lambda: self._denoise(batch, read))
        except CandidateError as error:
            latents, failed = [], [Failed(each, str(error)) for each in batch.candidates]
        took = time.perf_counter() - started - (self._painter.graphs.seconds - captured)
        yield from failed
        for candidate, own in latents:
            yield self._decode(candidate, own, took / len(batch.lanes))
        yield from self._painter.graphs.tell()
        if self._memory and not upcoming:
            peak, name = self._memory.peak / 2**30, torch.cuda.get_device_name(self._device)
            yield Note(f"attention by {self._attention.name} kernels")
            if reason := why_without_kernels(self._device, self._model.dtype):
                yield Note(f"group norms and biases by torch's slower kernels: {reason}")
            yield Note(f"peak memory {peak:.2f} GiB on {name}")

    def _capture_ahead(self, batch: Batch, upcoming: Sequence[Batch]) -> None:
        """Once a run; what cannot be loaded ahead fails when its batch comes."""
        if self._begun or not self._painter.graphs.enabled:
            return
        self._begun = True
        for key, controlnet in ahead(batch, upcoming, self._precapture).items():
            with suppress(CandidateError), self._working():
                self._painter.capture(key, controlnet)

    def _denoise(
        self, batch: Batch, read: Read
    ) -> tuple[list[tuple[Candidate, Tensor]], list[Failed]]:
        """The latents (1, C, h, w) of each candidate that can be drawn, and the others."""
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
        if not any(lanes):
            return [], failed
        latents = self._painter.paint(batch, lanes, read.noise)
        if self._stream is not None:
            self._stream.synchronize()
        pairs = enumerate(zip(batch.lanes, lanes, strict=True))
        return [(own, latents[i : i + 1]) for i, (own, lane) in pairs if own and lane], failed

    def _lane(self, candidate: Candidate, image: Tensor | None) -> Lane:
        panel, control = candidate.panel, candidate.panel.control
        return Lane(
            prompt=self._embed(panel.prompt),
            negative=self._negative(panel.negative),
            guidance=panel.guidance,
            image=image,
            weight=control.weight if control else 0.0,
        )

    def _negative(self, negative: str | None) -> Embedding:
        if negative is None and self._model.folder.force_zeros_for_empty_prompt:
            return self._text.zeros()
        return self._embed(negative or "")

    def _embed(self, text: str) -> Embedding:
        return self._text.encode(text, self._loras.text_key)

    def _decode(self, candidate: Candidate, latents: Tensor, share: float) -> Event:
        started = time.perf_counter()
        try:
            with self._working():
                decoded = self._roomy(lambda: self._picture(latents))
        except CandidateError as error:
            return Failed(candidate, str(error))
        seconds = share + time.perf_counter() - started
        return Drawn(candidate, decoded.image, seconds, decoded.notes)

    def _picture(self, latents: Tensor) -> Decoded:
        if self._memory is None:
            return self._decoder.decode(latents)
        with self._memory.measured() as taken:
            decoded = self._decoder.decode(latents)
        self._painter.graphs.spare = max(self._painter.graphs.spare, taken.bytes)
        return decoded

    def _roomy(self, work: Callable[[], _Result]) -> _Result:
        """The work's result; where memory runs out, tried again in the room that graphs held."""
        try:
            return work()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self._painter.graphs.clear()
        return work()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """On the engine's own device and stream, without gradients; its errors become ours."""
        try:
            with ExitStack() as place:
                place.enter_context(torch.inference_mode())
                if self._stream is not None:
                    place.enter_context(torch.cuda.device(self._device))
                    place.enter_context(_exact_convolutions())
                    place.enter_context(torch.cuda.stream(self._stream))
                yield
        except torch.OutOfMemoryError as error:
            raise CandidateError(
                f"out of memory on {self._device}; use a smaller size, or a smaller --batch"
            ) from error
        except MemoryError as error:
            raise CandidateError(
                "this machine's memory is full; close what else uses it"
            ) from error
        except REFUSALS as error:
            raise self._judge(error) from error

    def _judge(self, error: Exception) -> CandidateError | DeviceLost:
        """Whether one batch failed, or the device for good: then it fails at everything."""
        what = first_line(error)
        if self._stream is not None:
            try:
                torch.cuda.synchronize(self._device)
            except RuntimeError:
                return DeviceLost(
                    f"{self._device} does not answer any more ({what}); give the same command "
                    "again, and restart the machine if it stays so"
                )
        return CandidateError(what)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _exact_convolutions() -> AbstractContextManager[None]:
    """In float32 not TF32, which keeps 10 of its 23 bits; and never another kernel by timing."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=False, allow_tf32=False
    )
    return flags
