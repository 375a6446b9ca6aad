"""Trains what is worn over the model: LoRAs and the line-art ControlNet."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from captions import mirrored
from channels_last import exchange
from diffusers import ControlNetModel, StableDiffusionXLPipeline, UNet2DConditionModel
from feed import TINY, Feed, on_device
from lines import crests, dilated, steepness
from networks import Parts, new_controlnet
from noir import noir
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from pixels import as_values
from pool import SHARES, Chunk
from ranks import RANK, RANKS
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from training import Course, Loss, Trainer, at_random, batches, device_and_dtype, say
from unet_stage import Denoising, batch_of, encoded, text_states, token_ids
from vocabulary import PERSON, SIZES

LORA_RANK = 4
LAYERS = ["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "conv1", "conv2"]
"""Attention, feed-forward, and the convolutions of the residual blocks: the finest level of this
UNet has no attention, and it is there that small things get their colour."""
BATCH = 128
"""Pictures of 256x256 in a step; of larger ones fewer."""
LORA_RATE, CONTROLNET_RATE = 2e-3, 8e-4
LINEART_SCENES, PERSON_SCENES = 3072, 1024
"""Scenes of 256x256; of each other size half as many."""
OTHERS = 0.3
"""Share of the character's training that shows somebody else."""
EMPTY_SHARE = 0.1
"""Of prompts left out."""

Size = tuple[int, int]


@dataclass(frozen=True)
class Scenes:
    """Captioned scenes of one size on the training device.

    pictures: (n, 3, h, w), uint8; latents: (n, 4, h/8, w/8), as the UNet sees them; prompts
    (n, 77, 224) and pooled (n, 128), the text as the UNet sees it; all but the first float16 or
    float32.
    """

    pictures: Tensor
    latents: Tensor
    prompts: Tensor
    pooled: Tensor

    def __len__(self) -> int:
        return len(self.pictures)


@torch.no_grad()
def prepare(parts: Parts, chunks: Iterable[Chunk]) -> dict[Size, Scenes]:
    """Scenes of each size, each as it is and mirrored."""
    by_size: dict[Size, list[Chunk]] = {size: [] for size in SIZES}
    for chunk in chunks:
        by_size[chunk.size].append(chunk)
    return {size: _prepared(parts, each) for size, each in by_size.items() if each}


def _prepared(parts: Parts, chunks: list[Chunk]) -> Scenes:
    device = parts.vae.device
    pictures = torch.cat([on_device(chunk, device) for chunk in chunks])
    pictures = torch.cat([pictures, pictures.flip(-1)])
    captions = [caption for chunk in chunks for caption in chunk.captions]
    captions += [mirrored(caption) for caption in captions]
    prompts, pooled = _texts(parts, captions)
    return Scenes(pictures, latents_of(parts, pictures, as_values), prompts, pooled)


@torch.no_grad()
def _texts(parts: Parts, captions: list[str]) -> tuple[Tensor, Tensor]:
    ids = token_ids(parts, captions)
    states = [
        text_states(parts, [each[part].to(parts.unet.device) for each in ids])
        for part in batches(len(captions), 512)
    ]
    return torch.cat([each for each, _ in states]), torch.cat([each for _, each in states])


@torch.no_grad()
def latents_of(parts: Parts, pictures: Tensor, look: Callable[[Tensor], Tensor]) -> Tensor:
    """Latents of what `look` makes of pictures (n, 3, h, w), uint8; it gives -1 to 1."""
    return torch.cat(
        [encoded(parts.vae, look(pictures[part])) for part in batches(len(pictures), 64)]
    )


class Adapting(Denoising):
    """Denoising with text that was encoded beforehand."""

    def __init__(self, parts: Parts, size: Size, tiny: bool) -> None:
        super().__init__(parts, size, 2 if tiny else batch_of(size, BATCH, 16))
        self.no_prompt, self.no_pooled = _texts(parts, [""])

    def text(self, scenes: Scenes, index: Tensor, empty: float) -> tuple[Tensor, Tensor]:
        """Prompts and pooled prompts at `index`, a share of them left out."""
        dropped = torch.rand(len(index), 1, device=index.device) < empty
        prompts = torch.where(dropped[..., None], self.no_prompt, scenes.prompts[index])
        pooled = torch.where(dropped, self.no_pooled, scenes.pooled[index])
        return prompts.to(self.unet.dtype), pooled.to(self.unet.dtype)


def _index(count: int, batch: int, device: torch.device) -> Tensor:
    return torch.randint(count, (batch,), device=device)


def lora_losses(
    parts: Parts, scenes: dict[Size, Scenes], wanted: dict[Size, Tensor], tiny: bool
) -> dict[Size, Loss]:
    """Losses for the latents `wanted` where the scenes' own would be."""
    losses = {}
    for size, each in scenes.items():
        task = Adapting(parts, size, tiny)

        def loss(task: Adapting = task, each: Scenes = each, own: Tensor = wanted[size]) -> Tensor:
            index = _index(len(each), task.batch, own.device)
            return task.loss(own[index].float(), task.text(each, index, EMPTY_SHARE))

        losses[size] = loss
    return losses


def as_if_drawn(slopes: Tensor) -> Tensor:
    """Maps (n, 3, h, w) from slopes: of varied detail and thickness, some with pieces missing."""
    count, _, height, width = slopes.shape

    def each(low: float, high: float) -> Tensor:
        return torch.empty(count, 1, 1, 1, device=slopes.device).uniform_(low, high)

    thin = crests(slopes, each(14, 40))
    width_choice = each(0, 1)
    mask = torch.where(width_choice < 0.15, thin, dilated(thin))
    mask = torch.where(width_choice > 0.85, dilated(thin, 5), mask)
    cells = torch.rand(count, 1, height // 16, width // 16, device=slopes.device)
    kept = functional.interpolate((cells > each(-0.25, 0.25)).float(), size=(height, width))
    return (mask * kept).expand(-1, 3, -1, -1)


def lineart_losses(
    parts: Parts, controlnet: ControlNetModel, scenes: dict[Size, Scenes], tiny: bool
) -> dict[Size, Loss]:
    """Scenes under their own line art; some prompts are left out.

    Under prompts of other scenes it learnt to paint by the map alone, and obeyed its own less.
    """
    losses = {}
    for size, each in scenes.items():
        slopes = torch.cat([steepness(each.pictures[p]) for p in batches(len(each), 256)])
        task = Adapting(parts, size, tiny)

        def loss(task: Adapting = task, each: Scenes = each, slopes: Tensor = slopes) -> Tensor:
            index = _index(len(each), task.batch, slopes.device)
            maps = as_if_drawn(slopes[index])

            def steer(noisy: Tensor, steps: Tensor, prompts: Tensor, extra: dict) -> dict:
                down, middle = controlnet(
                    noisy,
                    steps,
                    prompts,
                    maps.to(noisy.dtype),
                    added_cond_kwargs=extra,
                    return_dict=False,
                )
                return {
                    "down_block_additional_residuals": down,
                    "mid_block_additional_residual": middle,
                }

            return task.loss(
                each.latents[index].float(), task.text(each, index, EMPTY_SHARE), steer
            )

        losses[size] = loss
    return losses


def add_lora(unet: UNet2DConditionModel) -> None:
    unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=LORA_RANK, lora_alpha=LORA_RANK, target_modules=LAYERS))


def save_lora(unet: UNet2DConditionModel, file: Path, trigger: str | None) -> None:
    """trigger: the word that wakes it, which goes into the file's metadata."""
    layers = {k: v.half().contiguous() for k, v in get_peft_model_state_dict(unet).items()}
    told = {"format": "pt"} | ({"modelspec.trigger_phrase": trigger} if trigger else {})
    file.parent.mkdir(parents=True, exist_ok=True)
    StableDiffusionXLPipeline.save_lora_weights(
        file.parent,
        unet_lora_layers=layers,
        weight_name=file.name,
        save_function=partial(save_file, metadata=told),
    )


def _train(
    name: str, module: torch.nn.Module, losses: dict[Size, Loss], course: Course, dtype: torch.dtype
) -> dict:
    trainer = Trainer([module], dtype, averaged_over=300)
    steps = [trainer.step_of(loss) for loss in losses.values()]
    shares = [SHARES[size] for size in losses]
    figures = trainer.run(name, course, at_random(steps, shares))
    trainer.finish()
    return figures


def gathered(source: Iterable[Chunk], scenes: int, tiny: bool) -> list[Chunk]:
    """Chunks, waited for: so many scenes of 256x256 and half as many of other sizes.

    tiny: a few scenes of one size.
    """
    left = {size: scenes if size == SIZES[0] else scenes // 2 for size in SIZES}
    found = []
    for chunk in source:
        if tiny and chunk.captions:
            return [chunk.chosen(range(min(TINY, len(chunk.captions))))]
        if left[chunk.size] > 0:
            found.append(chunk)
            left[chunk.size] -= len(chunk.captions)
        if all(count <= 0 for count in left.values()):
            break
    return found


def only(chunk: Chunk, noun: str) -> Chunk:
    """The scenes of a chunk that show `noun` first."""
    return chunk.chosen([n for n, f in enumerate(chunk.facts) if f.subjects[0].noun == noun])


def train_lineart(parts: Parts, scenes: dict[Size, Scenes], course: Course, folder: Path) -> dict:
    _, dtype = device_and_dtype()
    controlnet = new_controlnet(parts.unet).to(parts.unet.device, memory_format=torch.channels_last)
    frozen = replace(parts, unet=copy.deepcopy(parts.unet).requires_grad_(False).to(dtype))
    exchange(frozen.unet)
    losses = lineart_losses(frozen, controlnet, scenes, course.most is not None)
    figures = _train("lineart", controlnet, losses, course, dtype)
    if RANK == 0:
        controlnet.half().save_pretrained(folder)
    return figures


def train_lora(
    parts: Parts,
    scenes: dict[Size, Scenes],
    wanted: dict[Size, Tensor],
    course: Course,
    file: Path,
    trigger: str | None = None,
) -> dict:
    """A LoRA that turns the scenes' captions into the latents `wanted` of each size."""
    _, dtype = device_and_dtype()
    worn = replace(parts, unet=copy.deepcopy(parts.unet))
    add_lora(worn.unet)
    losses = lora_losses(worn, scenes, wanted, course.most is not None)
    figures = _train(file.stem, worn.unet, losses, course, dtype)
    if RANK == 0:
        save_lora(worn.unet, file, trigger)
    return figures


def train_adapters(
    parts: Parts, pool: Path, folder: Path, seconds: float, most: int | None = None
) -> dict:
    """Train all three for `parts`, which stay as they are; returns figures of each."""
    device, _ = device_and_dtype()
    parts.to(device)
    if device.type == "cuda":
        parts.vae.half()
    tiny = most is not None
    say("adapters: waits for scenes")
    with Feed(pool, "scene") as feed:
        ordinary = gathered(feed, LINEART_SCENES // RANKS, tiny)
    with Feed(pool, "people") as feed:
        people = gathered((only(chunk, PERSON) for chunk in feed), PERSON_SCENES // RANKS, tiny)
    scenes = prepare(parts, ordinary)
    say("adapters: lineart begins")
    course = Course(0.55 * seconds, CONTROLNET_RATE, most=most)
    figures = {"lineart": train_lineart(parts, scenes, course, folder / "controlnets" / "lineart")}
    wanted = {s: latents_of(parts, each.pictures, noir) for s, each in scenes.items()}
    course = Course(0.2 * seconds, LORA_RATE, most=most)
    figures["noir"] = train_lora(
        parts, scenes, wanted, course, folder / "loras" / "noir.safetensors"
    )
    del scenes, wanted
    others = gathered(ordinary, round(PERSON_SCENES * OTHERS / (1 - OTHERS) / RANKS), tiny)
    scenes = prepare(parts, people + others)
    course = Course(0.25 * seconds, LORA_RATE, most=most)
    figures[PERSON] = train_lora(
        parts,
        scenes,
        {size: each.latents for size, each in scenes.items()},
        course,
        folder / "loras" / f"{PERSON}.safetensors",
        trigger=PERSON,
    )
    parts.vae.float()
    return figures
