"""Trains the VAE on crops of composed scenes, and sets the scale of its latents."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from drawing import through_vae
from feed import Feed, on_device
from measures import psnr, squared_error
from networks import Parts
from noir import noir
from pixels import as_values
from pool import SHARES, Chunk, compose_chunk
from ranks import total
from scenes import HOLD_OUT_SEED
from spoil import spoilt
from torch import Tensor
from training import Course, Trainer, at_random, batches, device_and_dtype, every, say
from vocabulary import SIZES

RATE = 1e-3
CROPS = ((128, 128), (256, 32))
"""Side of a square crop and how many make a batch: half of the steps each."""
FIRST = 4096
"""Scenes to wait for."""
MOST = 160_000
"""Scenes kept on the device."""
REFRESH, AT_ONCE = 50, 24
"""Steps between two looks at what has been composed meanwhile, and chunks taken at each."""
TOLD = 500
"""Steps between two measurements on held-out scenes."""
KL_WEIGHT = 2e-6
CONTRAST = 0.33
"""Standard deviation of a channel in the median crop, of -1 to 1."""
NOIR_SHARE, SPOILT_SHARE, PERMUTED_SHARE = 0.1, 0.05, 0.05
"""Of each batch: other looks that the latents must be able to hold."""


class Pictures:
    """Scenes of all sizes on a device, uint8, in memory that stays where it is."""

    def __init__(self, most: int, device: torch.device) -> None:
        """most: scenes kept, of all sizes by their shares."""
        self.device = device
        self.room = {
            (w, h): torch.empty(
                most * share // sum(SHARES.values()), 3, h, w, dtype=torch.uint8, device=device
            )
            for (w, h), share in SHARES.items()
        }
        self.counts = dict.fromkeys(SIZES, 0)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def take(self, chunk: Chunk) -> None:
        """As many of its scenes as there is room for."""
        room, start = self.room[chunk.size], self.counts[chunk.size]
        new = on_device(chunk, self.device)[: len(room) - start]
        room[start : start + len(new)] = new
        self.counts[chunk.size] += len(new)

    def of(self, size: tuple[int, int]) -> Tensor:
        """(n, 3, h, w)"""
        return self.room[size][: self.counts[size]]

    def crops(self, side: int, count: int) -> Tensor:
        """Random crops of scenes of one random size that are large enough, -1 to 1."""
        fitting = [size for size in SIZES if min(size) >= side]
        size = random.choices(fitting, [self.counts[size] for size in fitting])[0]
        pictures = self.of(size)
        index = torch.randint(len(pictures), (count,), device=self.device)
        x, y = (random.randrange(length - side + 1) for length in size)
        crops = pictures[index, :, y : y + side, x : x + side]
        crops = crops.flip(-1) if random.random() < 0.5 else crops
        return varied(crops)


def varied(crops: Tensor) -> Tensor:
    """uint8 to -1..1; some made grey, dull, or of other colours."""
    result = as_values(crops)
    first = round(len(crops) * NOIR_SHARE)
    second = first + round(len(crops) * SPOILT_SHARE)
    third = second + round(len(crops) * PERMUTED_SHARE)
    if first:
        result[:first] = noir(crops[:first])
    if second > first:
        result[first:second] = spoilt(result[first:second])
    if third > second:
        result[second:third] = result[second:third].roll(random.choice((1, 2)), 1)
    return result


def vae_loss(vae: AutoencoderKL, pictures: Tensor) -> Tensor:
    """How far the VAE's copies are from pictures (n, 3, h, w), -1 to 1, float32."""
    wanted = pictures.contiguous(memory_format=torch.channels_last)
    latents = vae.encode(wanted.to(vae.dtype)).latent_dist
    off = vae.decode(latents.sample()).sample.float() - wanted
    error = off.abs().mean((1, 2, 3)) + 4 * off.square().mean((1, 2, 3))
    error += sum(slope.abs().mean((1, 2, 3)) for slope in _slopes(off))
    mean, logvar = latents.mean.float(), latents.logvar.float()
    spread = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum((1, 2, 3)).mean()
    per_crop = spread * (128 * 128) / (wanted.shape[-1] * wanted.shape[-2])
    return (error * faintness(wanted)).mean() + KL_WEIGHT * per_crop


def faintness(pictures: Tensor) -> Tensor:
    """How much an error in each of pictures (n, 3, h, w), -1 to 1, counts: about 1 on average, more
    where all is pale or foggy, as an eye gets used to it. (n,)
    """
    contrast = pictures.std((2, 3)).mean(1)
    return (CONTRAST / contrast.clamp(min=1e-3)).clamp(0.6, 2.5)


def _slopes(pictures: Tensor) -> tuple[Tensor, Tensor]:
    return pictures[..., 1:] - pictures[..., :-1], pictures[..., 1:, :] - pictures[..., :-1, :]


def decibels(vae: AutoencoderKL, pictures: Tensor) -> float:
    """PSNR of the mean error over all of pictures (n, 3, h, w), uint8."""
    copies, _ = through_vae(vae, pictures)
    return psnr(squared_error(copies, pictures.cpu()).mean()).item()


@torch.no_grad()
def latent_scale(vae: AutoencoderKL, pictures: Tensor) -> float:
    """What latents of pictures (n, 3, h, w), uint8, are multiplied by to have a variance of 1."""
    parts = [as_values(pictures[part].to(vae.device)) for part in batches(len(pictures), 64)]
    latents = torch.cat([vae.encode(part.to(vae.dtype)).latent_dist.mode() for part in parts])
    return round(1 / latents.float().std().item(), 4)


def train_vae(parts: Parts, pool: Path, seconds: float, most: int | None = None) -> dict:
    """Train `parts.vae` in place; returns figures."""
    device, dtype = device_and_dtype()
    tiny = most is not None
    vae = parts.vae.to(device, memory_format=torch.channels_last).train()
    held_out = on_device(compose_chunk(HOLD_OUT_SEED, "scene", SIZES[0], 2 if tiny else 64), device)
    pictures = Pictures(512 if tiny else MOST, device)
    with Feed(pool, tiny=tiny) as feed:
        for chunk in feed:
            pictures.take(chunk)
            if pictures.count >= (1 if tiny else FIRST) and pictures.counts[SIZES[0]]:
                break
        say(f"vae: begins with {pictures.count} scenes, {decibels(vae, held_out):.2f} dB")
        trainer = Trainer([vae], dtype, averaged_over=200)
        buffers = [torch.zeros(2 if tiny else n, 3, side, side, device=device) for side, n in CROPS]
        steps = [trainer.step_of(lambda buffer=buffer: vae_loss(vae, buffer)) for buffer in buffers]

        def take() -> None:
            for chunk in feed.ready(AT_ONCE):
                pictures.take(chunk)

        def tell() -> None:
            say(f"vae: {pictures.count} scenes, {decibels(vae, held_out):.2f} dB")

        now_and_then = every(REFRESH, take), every(TOLD, tell)

        def filled(buffer: Tensor, step: Callable[[], None]) -> None:
            for each in now_and_then:
                each()
            buffer.copy_(pictures.crops(buffer.shape[-1], len(buffer)))
            step()

        any_step = at_random(
            [partial(filled, *pair) for pair in zip(buffers, steps, strict=True)], (1, 1)
        )
        figures = trainer.run("vae", Course(seconds, RATE, most=most), any_step)
    trainer.finish()
    vae.register_to_config(scaling_factor=latent_scale(vae, pictures.of(SIZES[0])[:1024]))
    figures["scenes"] = total(pictures.count, device)
    figures["PSNR of the mean error, dB"] = round(decibels(vae, held_out), 2)
    say(f"vae: {figures}")
    return figures
