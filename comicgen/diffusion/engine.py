"""The engine that draws: a diffusion model on one device, one batch after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar

import torch
from torch import Tensor

from comicgen.diffusion.attention import choose
from comicgen.diffusion.clock import Clock
from comicgen.diffusion.decode import Decoder, Decoding
from comicgen.diffusion.denoising import Denoised, Denoising
from comicgen.diffusion.fused_check import begin
from comicgen.diffusion.graph_cache import GraphCache
from comicgen.diffusion.lean import why_without_kernels
from comicgen.diffusion.memory import Memory, is_out_of_memory
from comicgen.diffusion.models import Components, load_model
from comicgen.diffusion.painter import Painter, ahead
from comicgen.diffusion.precision import place_of
from comicgen.diffusion.sampling import draw_noise
from comicgen.diffusion.text import TextEncoding
from comicgen.diffusion.unchanged import check_unchanged
from comicgen.diffusion.workplace import Workplace
from comicgen.engine import Drawn, Event, Failed, GraphOptions, Measured, Note
from comicgen.environment import Environment
from comicgen.errors import (
    CandidateError,
    InputError,
    MachineError,
    NumericsError,
    first_line,
)
from comicgen.plan import Batch, Bucket, Candidate, GraphKey
from comicgen.prompts import load_tokenizers
from comicgen.storyboard import Model

_Result = TypeVar("_Result")

_GRAPHS = GraphOptions()


class DiffusionEngine:
    """Draws batches with the networks of one model, which it holds on its device."""

    def __init__(
        self, model: Components, options: GraphOptions = _GRAPHS, numerics: str = "plain"
    ) -> None:
        """`model` is the engine's own from now on; graphs need a GPU. `numerics` is only told."""
        self._model = model
        self._numerics = numerics
        self._place = Workplace(model.device)
        text = TextEncoding(
            load_tokenizers(model.folder.folder),
            (model.text_encoder, model.text_encoder_2),
            model.device,
            model.dtype,
        )
        self._decoder = Decoder(model.vae)
        self._memory = Memory(model.device) if self._place.stream else None
        self._attention = choose(model.unet)
        self._painter = Painter(
            model,
            text.zeros(),
            self._attention,
            GraphCache(self._place.stream, self._memory, options, self._attention.name, numerics),
        )
        self._precapture = options.precapture
        self._started = False
        self._denoising = Denoising(model, text, self._painter, self._place)

    @classmethod
    def open(cls, model: Model, environment: Environment, options: GraphOptions = _GRAPHS) -> Self:
        """Load a model onto the device, in the precision and numerics of an environment.

        Raises:
            InputError: the model's folder is incomplete or broken, or has changed since it was
                read for the storyboard.
            MachineError: the model does not fit into the device's memory.
            NumericsError: the device cannot draw with these numerics.
        """
        place, dtype = place_of(environment)
        if place.type == "cpu":
            torch.set_num_threads(environment.threads)
        tried = begin(place, dtype) if environment.numerics != "plain" else None
        try:
            loaded = load_model(model.folder, place, dtype, fused=tried is not None)
            if tried and (reason := tried.result()):
                raise NumericsError(
                    f"{place} cannot draw with fused numerics ({reason}); mend that, or use "
                    "--numerics plain in a new folder"
                )
            check_unchanged(model.folder, model.digest, loaded.folder.files)
            return cls(loaded, options, environment.numerics)
        except CandidateError as error:
            raise InputError(str(error)) from error
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise MachineError(
                    f"{model.written} does not fit into the memory of {place}; "
                    "close what else uses it, or choose another --device"
                ) from error
            raise MachineError(
                f"{place} cannot be used ({first_line(error)}); "
                "mend its driver, or use --device cpu"
            ) from error

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Yield a `Drawn` or a `Failed` for each candidate; see `comicgen.engine.Engine`.

        A GPU is given all steps, all pictures, and the next batch's first steps, before the first
        picture is waited for.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        self._capture_ahead(batch, upcoming)
        drawn = self._denoised(batch, upcoming)
        yield from drawn.failed
        begun = [(candidate, self._begin_decoding(own)) for candidate, own in drawn.latents]
        self._denoising.begin_next(upcoming)
        for candidate, decoding in begun:
            yield self._finish_decoding(candidate, decoding, drawn, batch.bucket)
        yield from self._painter.graphs.tell()
        if self._memory and not upcoming:
            peak, name = self._memory.peak / 2**30, torch.cuda.get_device_name(self._place.device)
            yield Note(f"attention by {self._attention.name} kernels")
            place = self._place.device
            if not self._model.fused and (reason := why_without_kernels(place, self._model.dtype)):
                yield Note(f"group norms and biases by torch's slower kernels: {reason}")
            yield Note(f"peak memory {peak:.2f} GiB on {name}")

    def measure(self, keys: Mapping[GraphKey, Model | None]) -> Iterator[Measured | Note]:
        """What these graphs cost, each with its ControlNet, on invented inputs.

        Notes tell why one cannot be captured, called or decoded.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        self._denoising.drop_next()
        for key, controlnet in keys.items():
            try:
                with self._place.working():
                    self._roomy(partial(self._painter.capture, key, controlnet))
                yield from self._untold_costs()
                yield self._decode_twice(key.bucket)
            except CandidateError as error:
                yield from self._untold_costs()
                yield Note(f"{key}: {error}")

    def _untold_costs(self) -> Iterator[Measured | Note]:
        told = self._painter.graphs.tell()
        return (each for each in told if isinstance(each, Measured | Note))

    def _decode_twice(self, bucket: Bucket) -> Measured:
        """What a picture of noise costs the second time: a GPU is quicker with zeros."""
        noise = draw_noise([0], self._model.latent_shape(bucket.size), draws=1)[0]
        with self._place.working():
            latents = noise.to(self._place.device)
            for _ in range(2):
                decoding, taken = self._roomy(lambda: self._decoding(latents))
                seconds = decoding.seconds()
        return Measured(self._numerics, bucket, decode=seconds, bytes=taken)

    def _capture_ahead(self, batch: Batch, upcoming: Sequence[Batch]) -> None:
        """Once a run; what cannot be loaded ahead fails when its batch comes."""
        if self._started or not self._painter.graphs.enabled:
            return
        self._started = True
        for key, controlnet in ahead(batch, upcoming, self._precapture).items():
            with suppress(CandidateError), self._place.working():
                self._roomy(partial(self._painter.capture, key, controlnet))

    def _denoised(self, batch: Batch, upcoming: Sequence[Batch]) -> Denoised:
        try:
            with self._place.working():
                read = self._denoising.reading.read(batch, upcoming)
                return self._roomy(lambda: self._denoising.denoise(batch, read))
        except CandidateError as error:
            failed = [Failed(each, str(error)) for each in batch.candidates]
            return Denoised(failed, [], Clock(self._place.device))
        finally:
            self._denoising.reading.forget()

    def _begin_decoding(self, latents: Tensor) -> Decoding | CandidateError:
        try:
            with self._place.working():
                return self._roomy(lambda: self._decoding(latents))[0]
        except CandidateError as error:
            return error

    def _decoding(self, latents: Tensor) -> tuple[Decoding, int]:
        """A decode, and the bytes that it takes for a moment; of a CPU's nobody asks."""
        if self._memory is None:
            return self._decoder.begin(latents), 0
        with self._memory.measured() as taken:
            decoding = self._decoder.begin(latents)
        self._painter.graphs.spare(taken.bytes)
        return decoding, taken.bytes

    def _finish_decoding(
        self,
        candidate: Candidate,
        decoding: Decoding | CandidateError,
        drawn: Denoised,
        bucket: Bucket,
    ) -> Event:
        """Its seconds are its share of the drawing, without captures, and its own decoding."""
        if isinstance(decoding, CandidateError):
            return Failed(candidate, str(decoding))
        try:
            with self._place.working():
                decoded = self._roomy(lambda: self._decoder.finish(decoding))
                share = max(drawn.clock.seconds() - drawn.captured, 0) / bucket.batch
                seconds = share + decoding.seconds() + decoded.seconds
        except CandidateError as error:
            return Failed(candidate, str(error))
        return Drawn(candidate, decoded.image, seconds, decoded.notes)

    def _roomy(self, work: Callable[[], _Result]) -> _Result:
        """The work's result; where memory runs out, tried again in the room that graphs held."""
        try:
            return work()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self._denoising.drop_next()  # it would go on in graphs that are gone
        self._painter.graphs.clear()
        return work()
