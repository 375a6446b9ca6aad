"""The engine that draws: a diffusion model on one device, one batch after the other."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Self, TypeVar

import torch
from torch import Tensor

from comicgen.diffusion.attention import choose
from comicgen.diffusion.conditioning import Conditioning, Lane, empty_lane, stack
from comicgen.diffusion.control import ControlNets
from comicgen.diffusion.decode import Decoded, Decoder
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.graph_cache import GraphCache
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.lora import LoraWeights
from comicgen.diffusion.memory import Memory
from comicgen.diffusion.models import PRECISIONS, REFUSALS, Components, load_model
from comicgen.diffusion.prepared import Prepared
from comicgen.diffusion.reading import Read, Reading
from comicgen.diffusion.sampling import sample, upload
from comicgen.diffusion.schedulers import schedule
from comicgen.diffusion.text import Embedding, TextEncoding
from comicgen.engine import Drawn, Event, Failed, GraphOptions, Note
from comicgen.environment import Environment
from comicgen.errors import CandidateError, DeviceLost, MachineError
from comicgen.plan import Batch, Bucket, Candidate, GraphKey
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
        self._controlnets = ControlNets(model)
        self._decoder = Decoder(model.vae)
        self._attention = choose(model.unet)
        self._memory = Memory(model.device) if self._stream else None
        self._graphs = GraphCache(
            self._stream if options.enabled else None,
            self._memory,
            self._attention.name,
            options.debug,
        )
        self._precapture = options.precapture
        self._begun = False
        factor = 2 ** (len(model.vae.config.block_out_channels) - 1)
        self._reading = Reading(factor, model.unet.config.in_channels)

    @classmethod
    def open(cls, model: Model, environment: Environment, options: GraphOptions = _GRAPHS) -> Self:
        """Load a model onto the device, and in the precision, of an environment.

        Raises:
            InputError: the model's folder is incomplete or broken.
            MachineError: the model does not fit into the device's memory.
        """
        place = torch.device(environment.device)
        if place.type == "cuda":
            place = torch.device("cuda", place.index or 0)
        else:
            torch.set_num_threads(environment.threads)
        try:
            return cls(load_model(model.folder, place, PRECISIONS[environment.precision]), options)
        except torch.OutOfMemoryError as error:
            raise MachineError(
                f"{model.written} does not fit into the memory of {place}; "
                "close what else uses it, or choose another --device"
            ) from error
        except RuntimeError as error:
            raise MachineError(
                f"{place} cannot be used ({_first_line(error)}); "
                "mend its driver, or use --device cpu"
            ) from error

    def draw(self, batch: Batch, upcoming: Sequence[Batch]) -> Iterator[Event]:
        """Yield a `Drawn` or a `Failed` for each candidate; see `comicgen.engine.Engine`.

        Raises:
            DeviceLost: the device does not answer any more.
        """
        self._capture_ahead(batch, upcoming)
        started, captured = time.perf_counter(), self._graphs.seconds
        try:
            with self._working():
                read = self._reading.read(batch, upcoming)
                latents, failed = self._roomy(lambda: self._denoise(batch, read))
        except CandidateError as error:
            latents, failed = [], [Failed(each, str(error)) for each in batch.candidates]
        took = time.perf_counter() - started - (self._graphs.seconds - captured)
        yield from failed
        for candidate, own in latents:
            yield self._decode(candidate, own, took / len(batch.lanes))
        yield from self._graphs.tell()
        if self._memory and not upcoming:
            peak, name = self._memory.peak / 2**30, torch.cuda.get_device_name(self._device)
            yield Note(f"attention by {self._attention.name} kernels")
            yield Note(f"peak memory {peak:.2f} GiB on {name}")

    def _capture_ahead(self, batch: Batch, upcoming: Sequence[Batch]) -> None:
        """Capture the largest graph of the run, in whose memory all others fit, and the commonest.

        Nothing is drawn for it: a ControlNet that cannot be loaded fails when its batch comes.
        """
        if self._begun or not self._graphs.enabled:
            return
        self._begun = True
        batches = [batch, *upcoming]
        uses = Counter(key for each in batches for key in each.keys)
        ahead = {key for key, _ in uses.most_common(self._precapture)}
        largest = max(uses, key=_work)
        if ahead or largest not in batch.keys:
            ahead.add(largest)
        models = {b.control.model.digest: b.control.model for b in batches if b.control}
        for key in sorted(ahead, key=_work, reverse=True):
            with suppress(CandidateError), self._working():
                denoiser = self._denoiser(models[key.controlnet] if key.controlnet else None)
                prepared = denoiser.prepare(self._conditioning(key.bucket, []))
                self._graphs.capture(self._task(key, denoiser, prepared))

    def _task(self, key: GraphKey, denoiser: Denoiser, prepared: Prepared) -> Task:
        shape = key.bucket.batch, *self._reading.shape(key.bucket.size)
        return Task(key, denoiser, prepared.named(), torch.empty(shape, device=self._device))

    def _denoiser(self, controlnet: Model | None) -> Denoiser:
        network = self._controlnets.get(controlnet) if controlnet else None
        return Denoiser(self._model.unet, network, self._attention)

    def _denoise(
        self, batch: Batch, read: Read
    ) -> tuple[list[tuple[Candidate, Tensor]], list[Failed]]:
        """The latents (1, C, h, w) of each candidate that can be drawn, and the others."""
        self._loras.set(batch.loras)
        failed = [
            Failed(candidate, str(image))
            for candidate, image in zip(batch.lanes, read.images, strict=True)
            if candidate and isinstance(image, CandidateError)
        ]
        lanes = [
            self._lane(candidate, image)
            if candidate and not isinstance(image, CandidateError)
            else None
            for candidate, image in zip(batch.lanes, read.images, strict=True)
        ]
        if not any(lanes):
            return [], failed
        latents = self._sample(batch, lanes, read.noise)
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

    def _conditioning(self, bucket: Bucket, lanes: Sequence[Lane | None]) -> Conditioning:
        """Of these lanes and, where there are none, empty ones."""
        empty = empty_lane(self._text.zeros(), bucket.size, bucket.controls > 0)
        filled = [lane or empty for lane in lanes] or [empty] * bucket.batch
        return stack(filled, bucket.size, bucket.guided)

    def _sample(self, batch: Batch, lanes: Sequence[Lane | None], noise: Tensor) -> Tensor:
        """The latents (B, C, h, w) float32 of all lanes."""
        plain = self._denoiser(None)
        denoiser = self._denoiser(batch.control.model) if batch.control else plain
        inside = denoiser.prepare(self._conditioning(batch.bucket, lanes))
        tasks = [
            self._task(key, denoiser, inside)
            if key.controlnet
            else self._task(key, plain, inside.without_control())
            for key in batch.keys
        ]
        predict = self._graphs.begin(tasks)

        def model(latents: Tensor, timestep: Tensor, step: int) -> Tensor:
            closed = batch.control is not None and not batch.control.is_open(step, batch.steps)
            return predict[closed](latents, timestep)

        scheduler = schedule(batch.sampler, self._model.folder.schedule, batch.steps)
        assert len(scheduler.timesteps) == batch.steps
        return sample(model, scheduler, upload(noise, self._device))

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
        self._graphs.spare = max(self._graphs.spare, taken.bytes)
        return decoded

    def _roomy(self, work: Callable[[], _Result]) -> _Result:
        """The work's result; where memory runs out, tried again in the room that graphs held."""
        with suppress(torch.OutOfMemoryError):
            return work()
        self._graphs.clear()
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
        except REFUSALS as error:
            raise self._judge(error) from error

    def _judge(self, error: Exception) -> CandidateError | DeviceLost:
        """Whether one batch failed, or the device for good: then it fails at everything."""
        what = _first_line(error)
        if self._stream is not None:
            try:
                torch.cuda.synchronize(self._device)
            except RuntimeError:
                return DeviceLost(
                    f"{self._device} does not answer any more ({what}); give the same command "
                    "again, and restart the machine if it stays so"
                )
        return CandidateError(what)


def _work(key: GraphKey) -> int:
    """How much one replay computes, and so about how much memory it takes."""
    bucket = key.bucket
    area = bucket.size.width * bucket.size.height
    return bucket.batch * area * bucket.chunks * (1 + bucket.guided) * (1 + bucket.controls)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _exact_convolutions() -> AbstractContextManager[None]:
    """In float32 not TF32, which keeps 10 of its 23 bits; and never another kernel by timing."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=False, allow_tf32=False
    )
    return flags
