"""The engine that draws: a diffusion model on one device, one batch after the other."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Self

import torch
from torch import Tensor

from comicgen.diffusion.conditioning import Lane, empty_lane, stack
from comicgen.diffusion.control import ControlNets, read_control_image
from comicgen.diffusion.decode import Decoder
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.lora import LoraWeights
from comicgen.diffusion.models import PRECISIONS, REFUSALS, Components, load_model
from comicgen.diffusion.sampling import draw_noise, sample, upload
from comicgen.diffusion.schedulers import SAMPLERS, schedule
from comicgen.diffusion.text import Embedding, TextEncoding
from comicgen.diffusion.unchanged import check_unchanged
from comicgen.engine import Drawn, Event, Failed, Note
from comicgen.environment import Environment
from comicgen.errors import CandidateError, DeviceLost, MachineError
from comicgen.plan import Batch, Candidate
from comicgen.prompts import load_tokenizers
from comicgen.sizes import Size
from comicgen.storyboard import Model


class DiffusionEngine:
    """Draws batches with the networks of one model, which it holds on its device."""

    def __init__(self, model: Components) -> None:
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

    @classmethod
    def open(cls, model: Model, environment: Environment) -> Self:
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
            return cls(load_model(model.folder, place, PRECISIONS[environment.precision]))
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
        started = time.perf_counter()
        try:
            with self._working():
                latents, failed = self._denoise(batch)
        except CandidateError as error:
            latents, failed = [], [Failed(each, str(error)) for each in batch.candidates]
        share = (time.perf_counter() - started) / len(batch.lanes)
        yield from failed
        for candidate, own in latents:
            yield self._decode(candidate, own, share)
        if self._stream is not None and not upcoming:
            yield Note(self._peak_memory())

    def _peak_memory(self) -> str:
        """What the whole run needed, for the manifest."""
        peak = torch.cuda.max_memory_allocated(self._device) / 2**30
        return f"peak memory {peak:.2f} GiB on {torch.cuda.get_device_name(self._device)}"

    def _denoise(self, batch: Batch) -> tuple[list[tuple[Candidate, Tensor]], list[Failed]]:
        """The latents (1, C, h, w) of each candidate that can be drawn, and the others."""
        self._loras.set(batch.loras)
        controlnet = self._controlnets.get(batch.control.model) if batch.control else None
        lanes, failed = self._read(batch)
        if not any(lanes):
            return [], failed
        latents = self._sample(batch, lanes, Denoiser(self._model.unet, controlnet))
        if self._stream is not None:
            self._stream.synchronize()
        pairs = enumerate(zip(batch.lanes, lanes, strict=True))
        return [(own, latents[i : i + 1]) for i, (own, lane) in pairs if own and lane], failed

    def _read(self, batch: Batch) -> tuple[list[Lane | None], list[Failed]]:
        """What each lane is drawn from, None where it holds nothing that can be drawn."""
        lanes: list[Lane | None] = []
        failed: list[Failed] = []
        for candidate in batch.lanes:
            lane = None
            if candidate is not None:
                try:
                    lane = self._lane(candidate)
                except CandidateError as error:
                    failed.append(Failed(candidate, str(error)))
            lanes.append(lane)
        return lanes, failed

    def _lane(self, candidate: Candidate) -> Lane:
        panel, control = candidate.panel, candidate.panel.control
        if control:
            check_unchanged(control.image, control.image_digest)
        return Lane(
            seed=candidate.seed,
            prompt=self._embed(panel.prompt),
            negative=self._negative(panel.negative),
            guidance=panel.guidance,
            image=read_control_image(control.image, panel.size) if control else None,
            weight=control.weight if control else 0.0,
        )

    def _negative(self, negative: str | None) -> Embedding:
        if negative is None and self._model.folder.force_zeros_for_empty_prompt:
            return self._text.zeros()
        return self._embed(negative or "")

    def _embed(self, text: str) -> Embedding:
        active = (f"{lora.digest}*{lora.weight}" for lora in self._loras.active)
        return self._text.encode(text, " ".join(active))

    def _sample(self, batch: Batch, lanes: Sequence[Lane | None], denoiser: Denoiser) -> Tensor:
        """The latents (B, C, h, w) float32 of all lanes."""
        bucket, control = batch.bucket, batch.control
        empty = empty_lane(self._text.zeros(), bucket.size, control is not None)
        filled = [lane or empty for lane in lanes]
        prepared = denoiser.prepare(stack(filled, bucket.size, bucket.guided))
        outside = prepared.without_control()
        scheduler = schedule(batch.sampler, self._model.folder.schedule, batch.steps)
        steps = len(scheduler.timesteps)

        def model(latents: Tensor, timestep: Tensor, step: int) -> Tensor:
            within = control is not None and control.is_open(step, steps)
            return denoiser.predict(latents, timestep, prepared if within else outside)

        draws = 1 + steps if SAMPLERS[batch.sampler].noisy else 1
        noise = draw_noise([lane.seed for lane in filled], self._latent_shape(bucket.size), draws)
        return sample(model, scheduler, upload(noise, self._device))

    def _latent_shape(self, size: Size) -> tuple[int, int, int]:
        factor = 2 ** (len(self._model.vae.config.block_out_channels) - 1)
        return self._model.unet.config.in_channels, size.height // factor, size.width // factor

    def _decode(self, candidate: Candidate, latents: Tensor, share: float) -> Event:
        started = time.perf_counter()
        try:
            with self._working():
                decoded = self._decoder.decode(latents)
        except CandidateError as error:
            return Failed(candidate, str(error))
        seconds = share + time.perf_counter() - started
        return Drawn(candidate, decoded.image, seconds, decoded.notes)

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
