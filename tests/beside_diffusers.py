"""Four different lanes of one batch as we draw them, and as diffusers' own pipeline does.

The pipeline is called once for each lane, in the networks' type and in a wider one, which tells
what the narrow type loses by itself. Random embeddings and control images stand for texts and
maps; every number of them, and of the noise, is exact in float16.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from bench_parts.replays import Desk
from diffusers import EulerDiscreteScheduler, StableDiffusionXLControlNetPipeline
from torch import Tensor

from comicgen.diffusion.attention import choose
from comicgen.diffusion.conditioning import Lane, stack
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.fused import fuse
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.lean import lean
from comicgen.diffusion.prepared import Prepared
from comicgen.diffusion.sampling import Sampling, draw_noise
from comicgen.diffusion.schedulers import schedule
from comicgen.diffusion.text import Embedding
from comicgen.plan import Bucket, GraphKey
from comicgen.sizes import Size

GUIDANCE = (3.0, 5.0, 7.5, 1.5)
WEIGHT = (0.4, 0.8, 1.2, 0.6)
LANES = range(4)
TRAINING = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "steps_offset": 1,
    "timestep_spacing": "leading",
}

Predict = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Networks:
    """A UNet and its ControlNet, as diffusers makes them."""

    unet: Any
    controlnet: Any

    def to(self, dtype: torch.dtype) -> "Networks":
        """A copy in another type."""
        return Networks(
            copy.deepcopy(self.unet).to(dtype), copy.deepcopy(self.controlnet).to(dtype)
        )

    def denoiser(self, fused: bool = False) -> Denoiser:
        """As the engine makes it: leaner modules over these very weights, or fused ones."""
        if fused:
            unet, controlnet = copy.deepcopy(self.unet), copy.deepcopy(self.controlnet)
        else:
            unet, controlnet = _sharing(self.unet), _sharing(self.controlnet)
        for network in (unet, controlnet):
            (fuse if fused else lean)(network)
        return Denoiser(unet, controlnet, choose(unet))


@dataclass(frozen=True)
class Job:
    """How large, and in how many steps."""

    size: Size
    steps: int

    @property
    def noise(self) -> Tensor:
        """(4, 4, h, w) float32 on the CPU."""
        shape = (4, self.size.height // 8, self.size.width // 8)
        return draw_noise(LANES, shape, 1)[0].half().float()


@dataclass(frozen=True)
class Drawing:
    """Final latents (B, C, h, w), and the UNet's answers (steps, 2, B, C, h, w), negative first."""

    latents: Tensor
    branches: Tensor

    @property
    def guided(self) -> Tensor:
        """Both branches combined, (steps, B, C, h, w) float64."""
        negative, prompt = self.branches.double().unbind(1)
        return negative + torch.tensor(GUIDANCE).view(-1, 1, 1, 1).to(negative) * (
            prompt - negative
        )


class Watch:
    """Keeps what a UNet answers at every step, (R, C, h, w), in one call or several.

    The hook copies into one place, because a captured graph, which runs no hook when it is
    replayed, repeats the copy. A graph captured under a watch must not outlive it.
    """

    def __init__(self, unet: Any, noise: Tensor) -> None:
        shape = (2 * len(noise), *noise.shape[1:])
        self._steps: list[Tensor] = []
        self._row = 0
        self._last = torch.empty(shape, dtype=unet.dtype, device=unet.device)
        self._hook = unet.register_forward_hook(self._copy)

    def _copy(self, unet: Any, inputs: Any, output: tuple[Tensor]) -> None:
        rows = output[0]
        self._last[self._row : self._row + len(rows)].copy_(rows)
        self._row = (self._row + len(rows)) % len(self._last)

    def keep(self, *_: Any) -> dict[str, Any]:
        """The step is over. A pipeline calls it with the step's variables, and changes none."""
        self._steps.append(self._last.clone())
        return {}

    def close(self) -> Tensor:
        """(steps, 2, R / 2, C, h, w)."""
        self._hook.remove()
        return torch.stack(self._steps).unflatten(1, (-1, 2)).transpose(1, 2)


def ours(networks: Networks, job: Job, fused: bool = False) -> Drawing:
    """All lanes in one batch, on a GPU through a graph from the first step."""
    denoiser = networks.denoiser(fused)
    watch = Watch(denoiser.unet, job.noise)
    with predicting(denoiser, job) as start:
        predict = start(prepare(denoiser, job))

        def watched(latents: Tensor, timestep: Tensor) -> Tensor:
            prediction = predict(latents, timestep)
            watch.keep()
            return prediction

        return Drawing(draw(watched, job, networks.unet.device), watch.close())


def prepare(denoiser: Denoiser, job: Job) -> Prepared:
    lanes = [random_lane(seed, denoiser.unet, job.size) for seed in LANES]
    return denoiser.prepare(stack(lanes, job.size, guided=True))


@contextmanager
def predicting(denoiser: Denoiser, job: Job) -> Iterator[Callable[[Prepared], Predict]]:
    """Makes a prediction of what was prepared: of graphs on a GPU, else of the networks."""
    if denoiser.unet.device.type == "cpu":
        yield lambda prepared: partial(_call, denoiser, prepared)
        return
    desk = Desk.beside(denoiser.unet, denoiser.controlnet)
    shape = job.noise.to(denoiser.unet.device)

    def start(prepared: Prepared) -> Predict:
        controlled = prepared.control_hint is not None
        bucket = Bucket(len(LANES), job.size, 1, int(controlled), True)
        key = GraphKey(bucket, "digest" if controlled else None)
        task = Task(key, denoiser, prepared.named(), shape)
        desk.cache.capture(task)
        assert key in desk.cache.keys
        [predict] = desk.cache.begin([task])
        return predict

    with desk.working():
        yield start
    desk.cache.clear()


def _call(denoiser: Denoiser, prepared: Prepared, latents: Tensor, timestep: Tensor) -> Tensor:
    return denoiser.predict(latents, timestep, prepared)


def draw(predict: Predict, job: Job, device: torch.device) -> Tensor:
    scheduler = schedule("euler", TRAINING, job.steps)
    return Sampling(
        lambda latents, timestep, _: predict(latents, timestep),
        scheduler,
        job.noise[None].to(device),
    ).take()


def theirs(networks: Networks, job: Job) -> Drawing:
    """The same from diffusers' pipeline, lane by lane."""
    pipe = StableDiffusionXLControlNetPipeline(
        unet=networks.unet,
        controlnet=networks.controlnet,
        scheduler=EulerDiscreteScheduler(**TRAINING),
        add_watermarker=False,
        **dict.fromkeys(("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")),
    )
    pipe.set_progress_bar_config(disable=True)
    drawn = [_one_of_theirs(pipe, seed, job) for seed in LANES]
    return Drawing(
        torch.cat([each.latents for each in drawn]),
        torch.cat([each.branches for each in drawn], dim=2),
    )


def _one_of_theirs(pipe: Any, seed: int, job: Job) -> Drawing:
    lane = random_lane(seed, pipe.unet, job.size)
    noise = job.noise[seed : seed + 1].to(pipe.unet.device, pipe.unet.dtype)
    watch = Watch(pipe.unet, noise)
    size = (job.size.height, job.size.width)
    latents = pipe(
        prompt_embeds=lane.prompt.hidden,
        pooled_prompt_embeds=lane.prompt.pooled,
        negative_prompt_embeds=lane.negative.hidden,
        negative_pooled_prompt_embeds=lane.negative.pooled,
        guidance_scale=lane.guidance,
        image=lane.image,
        controlnet_conditioning_scale=lane.weight,
        original_size=size,
        target_size=size,
        crops_coords_top_left=(0, 0),
        num_inference_steps=job.steps,
        latents=noise,
        output_type="latent",
        callback_on_step_end=watch.keep,
    ).images
    return Drawing(latents, watch.close())


def random_lane(seed: int, unet: Any, size: Size) -> Lane:
    """Embeddings in the UNet's type, and a control image of squares as large as a latent pixel."""
    generator = torch.Generator().manual_seed(100 + seed)
    config = unet.config
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).half().to(unet.device, unet.dtype)

    prompt, negative = (
        Embedding(numbers(1, 77, config.cross_attention_dim), numbers(1, pooled)) for _ in range(2)
    )
    squares = torch.rand((1, 3, size.height // 8, size.width // 8), generator=generator)
    image = squares.half().float().repeat_interleave(8, -1).repeat_interleave(8, -2)
    return Lane(prompt, negative, GUIDANCE[seed], image, WEIGHT[seed])


@dataclass(frozen=True)
class Agreement:
    """Relative distances: our predictions from theirs, final latents from each other's.

    `branches` is (steps, 2, 4), `guided` (steps, 4), all others (4,), one for each lane.
    """

    branches: Tensor
    guided: Tensor
    ours_from_theirs: Tensor
    ours_from_wide: Tensor
    theirs_from_wide: Tensor

    def figures(self) -> dict[str, Any]:
        negative, prompt = self.branches.unbind(1)
        steps = {"negative": negative, "prompt": prompt, "guided": self.guided}
        return {
            "prediction": {
                name: {"largest": gaps.max().item(), "median": gaps.median().item()}
                for name, gaps in steps.items()
            },
            "latents": {
                name: getattr(self, name).tolist()
                for name in ("ours_from_theirs", "ours_from_wide", "theirs_from_wide")
            },
        }


def compare(narrow: Networks, wide: Networks, job: Job, fused: bool = False) -> Agreement:
    own, other, reference = ours(narrow, job, fused), theirs(narrow, job), theirs(wide, job)
    return Agreement(
        gap(own.branches, other.branches),
        gap(own.guided, other.guided),
        gap(own.latents, other.latents),
        gap(own.latents, reference.latents),
        gap(other.latents, reference.latents),
    )


def gap(one: Tensor, other: Tensor) -> Tensor:
    """The norm over (C, h, w) of the difference, relative to the other's."""
    one, other = one.double(), other.double()
    apart, whole = (
        torch.linalg.vector_norm(each, dim=(-3, -2, -1)) for each in (one - other, other)
    )
    return (apart / whole).cpu()


@dataclass(frozen=True)
class Moved:
    """By how much, relative to them, the latents of all lanes move, and those of each."""

    together: float
    lanes: Sequence[float]


def influence(networks: Networks, job: Job, fused: bool = False) -> dict[str, Moved]:
    """By how much the lack of each input, or its branches swapped, moves the final latents."""
    denoiser = networks.denoiser(fused)
    prepared = prepare(denoiser, job)
    changes = {
        **{name: _zeroed(prepared, name) for name in ("text", "pooled", "time_ids", "guidance")},
        "ControlNet": prepared.without_control(),
        "swapped branches": _swapped(prepared),
    }
    with predicting(denoiser, job) as start:

        def drawn(prepared: Prepared) -> Tensor:
            return draw(start(prepared), job, networks.unet.device)

        usual = drawn(prepared)
        return {name: _moved(drawn(changed), usual) for name, changed in changes.items()}


def _moved(latents: Tensor, usual: Tensor) -> Moved:
    together = (latents - usual).norm() / usual.norm()
    return Moved(together.item(), gap(latents, usual).tolist())


def weak(moved: Mapping[str, Moved], least: float) -> dict[str, Moved]:
    """What moves the latents by less."""
    return {name: each for name, each in moved.items() if not each.together >= least}


def _zeroed(prepared: Prepared, name: str) -> Prepared:
    return replace(prepared, **{name: torch.zeros_like(getattr(prepared, name))})


def _swapped(prepared: Prepared) -> Prepared:
    def swapped(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)

    return replace(prepared, text=swapped(prepared.text), pooled=swapped(prepared.pooled))


def _sharing(network: Any) -> Any:
    """A copy of the modules over the same tensors."""
    return copy.deepcopy(network, {id(each): each for each in network.parameters()})
