"""Trains the UNet and both text encoders on the latents of composed scenes."""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from captions import mirrored
from channels_last import exchange
from diffusers import AutoencoderKL
from feed import Feed, on_device
from networks import Parts, size_numbers
from pixels import as_values
from pool import SHARES, Chunk
from ranks import total
from spoil import spoilt
from torch import Tensor
from training import Course, Diffusion, Loss, Trainer, at_random, device_and_dtype, every, say
from vocabulary import DEGRADED, SIZES

RATE, RATE_AGAIN = 1.2e-3, 5e-4
"""Of a new network, and of one that an earlier stage trained: the full rate would undo it first."""
BATCH = 512
"""Pictures of 256x256 in a step; of larger ones fewer."""
FIRST = 8192
"""Scenes to wait for."""
REFRESH, AT_ONCE = 50, 12
"""Steps between two looks at what has been composed meanwhile, and chunks taken at each."""
MOST = {SIZES[0]: 260_000}
MOST_ELSE = 130_000
"""Entries kept; each scene makes two."""
SPOILT_SHARE = 0.08
EMPTY_SHARE = 0.1
"""Of prompts left out, for classifier-free guidance."""


class Entries:
    """Latents and token ids of scenes of one size, in memory that stays where it is.

    latents: (most, 4, h/8, w/8), float16, as the UNet sees them; ids: two of (most, 77), int16;
    count: how many are there, a tensor, so that graphs see it grow.
    """

    def __init__(self, size: tuple[int, int], most: int, device: torch.device) -> None:
        width, height = size
        self.latents = torch.zeros(
            most, 4, height // 8, width // 8, dtype=torch.float16, device=device
        )
        self.ids = [torch.zeros(most, 77, dtype=torch.int16, device=device) for _ in range(2)]
        self.count = torch.zeros((), device=device)
        self.length = 0

    @property
    def room(self) -> int:
        return len(self.latents) - self.length

    def add(self, latents: Tensor, ids: list[Tensor]) -> None:
        end = self.length + len(latents)
        self.latents[self.length : end] = latents
        for kept, new in zip(self.ids, ids, strict=True):
            kept[self.length : end] = new
        self.length = end
        self.count.fill_(end)

    def draw(self, batch: int) -> tuple[Tensor, list[Tensor]]:
        """Random latents (batch, 4, h/8, w/8), float32, and their ids, each (batch, 77)."""
        chance = torch.rand(batch, device=self.count.device)
        index = (chance * self.count).long().clamp(max=len(self.latents) - 1)
        return self.latents[index].float(), [ids[index].long() for ids in self.ids]


class Library:
    """Entries of all sizes, made from chunks: each scene as it is and mirrored, some spoilt."""

    def __init__(self, parts: Parts, device: torch.device, tiny: bool = False) -> None:
        self.parts, self.device = parts, device
        self.entries = {
            size: Entries(size, 512 if tiny else MOST.get(size, MOST_ELSE), device)
            for size in SIZES
        }

    @property
    def length(self) -> int:
        return sum(each.length for each in self.entries.values())

    @torch.no_grad()
    def take(self, chunk: Chunk) -> None:
        entries, count = self.entries[chunk.size], len(chunk.captions)
        if entries.room < 2 * count:
            return
        pictures = as_values(on_device(chunk, self.device))
        pictures = torch.cat([pictures, pictures.flip(-1)])
        captions = chunk.captions + [mirrored(caption) for caption in chunk.captions]
        for n in random.sample(range(2 * count), round(2 * count * SPOILT_SHARE)):
            pictures[n : n + 1] = spoilt(pictures[n : n + 1])
            captions[n] = spoilt_caption(captions[n])
        ids = token_ids(self.parts, captions)
        assert max(int(each.max()) for each in ids) < self.parts.text_encoder.config.vocab_size
        entries.add(encoded(self.parts.vae, pictures), ids)


def spoilt_caption(caption: str) -> str:
    """What is said of a spoilt scene: often only that, as negative prompts do."""
    words = random.choices((DEGRADED, *DEGRADED.split(", ")), (3, 1, 1))[0]
    return words if random.random() < 0.4 else f"{caption}, {words}"


def token_ids(parts: Parts, texts: list[str]) -> list[Tensor]:
    """What each of the two text encoders reads of texts: (n, 77), int64."""
    return [
        tokenizer(
            texts, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
        ).input_ids
        for tokenizer in (parts.tokenizer, parts.tokenizer_2)
    ]


def encoded(vae: AutoencoderKL, pictures: Tensor) -> Tensor:
    """Latents, as the UNet sees them, of pictures (n, 3, h, w), -1 to 1."""
    pictures = pictures.to(vae.dtype).contiguous(memory_format=torch.channels_last)
    return vae.encode(pictures).latent_dist.mode() * vae.config.scaling_factor


def text_states(parts: Parts, ids: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What SDXL's UNet reads of prompts: (n, 77, 224) of both encoders, and pooled (n, 128)."""
    first = parts.text_encoder(ids[0], output_hidden_states=True)
    second = parts.text_encoder_2(ids[1], output_hidden_states=True)
    states = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], -1)
    return states, second.text_embeds


class Denoising:
    """The task of all that draws: find the noise in latents of a size, given their text."""

    def __init__(self, parts: Parts, size: tuple[int, int], batch: int) -> None:
        device = parts.unet.device
        self.unet, self.batch = parts.unet, batch
        self.diffusion = Diffusion.of(parts.scheduler.alphas_cumprod, device)
        numbers = torch.tensor([size_numbers(size)], dtype=torch.float32, device=device)
        self.time_ids = numbers.expand(batch, -1)

    def loss(
        self,
        latents: Tensor,
        text: tuple[Tensor, Tensor],
        steer: Callable[..., dict[str, object]] | None = None,
    ) -> Tensor:
        """Of latents (batch, 4, h/8, w/8), float32, under prompts and pooled prompts.

        steer: gives the UNet further arguments, from the noisy latents, steps and text.
        """
        prompts, pooled = text
        extra = {"text_embeds": pooled, "time_ids": self.time_ids}

        def predict(noisy: Tensor, steps: Tensor) -> Tensor:
            noisy = noisy.to(prompts.dtype).contiguous(memory_format=torch.channels_last)
            more = steer(noisy, steps, prompts, extra) if steer else {}
            return self.unet(noisy, steps, prompts, added_cond_kwargs=extra, **more).sample

        return self.diffusion.loss(latents, predict)


def batch_of(size: tuple[int, int], square: int, step: int) -> int:
    """Pictures of a size in a batch, where it holds `square` of 256x256; a multiple of `step`."""
    return round(square * 256 * 256 / (size[0] * size[1]) / step) * step


def unet_loss(parts: Parts, entries: Entries, size: tuple[int, int], batch: int) -> Loss:
    """Of random entries of one size, through the text encoders."""
    task = Denoising(parts, size, batch)
    no_prompt = [ids.to(parts.unet.device) for ids in token_ids(parts, [""])]

    def loss() -> Tensor:
        latents, ids = entries.draw(batch)
        dropped = torch.rand(batch, 1, device=latents.device) < EMPTY_SHARE
        ids = [torch.where(dropped, none, own) for none, own in zip(no_prompt, ids, strict=True)]
        return task.loss(latents, text_states(parts, ids))

    return loss


def train_unet(
    parts: Parts, pool: Path, seconds: float, most: int | None = None, rate: float = RATE
) -> dict:
    """Train the UNet and the text encoders of `parts` in place; returns figures."""
    device, dtype = device_and_dtype()
    parts.to(device)
    if device.type == "cuda":
        exchange(parts.vae.half())
    tiny = most is not None
    library = Library(parts, device, tiny)
    with Feed(pool, "scene", tiny=tiny) as feed:
        for chunk in feed.first(1 if tiny else FIRST):
            library.take(chunk)
        say(f"unet: begins with {library.length} latents")
        trainer = Trainer((parts.unet, parts.text_encoder, parts.text_encoder_2), dtype)
        shares = {size: share for size, share in SHARES.items() if library.entries[size].length}
        steps = [
            trainer.step_of(
                unet_loss(
                    parts, library.entries[size], size, 2 if tiny else batch_of(size, BATCH, 32)
                )
            )
            for size in shares
        ]
        say("unet: steps are recorded")

        def take() -> None:
            for chunk in feed.ready(AT_ONCE):
                library.take(chunk)

        look, any_step = every(REFRESH, take), at_random(steps, [*shares.values()])

        def next_step() -> None:
            look()
            any_step()

        figures = trainer.run("unet", Course(seconds, rate, most=most), next_step)
    trainer.finish()
    parts.vae.float()
    figures |= {"latents": total(library.length, device), "rate": rate}
    say(f"unet: {figures}")
    return figures
