"""From noise to latents: noise that belongs to a seed, and the loop over the steps."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

Model = Callable[[Tensor, Tensor, int], Tensor]
"""(latents (B, C, h, w) float32, timestep (B,) float32 on the same device, step from 0) -> what the
network predicts, noise or velocity as it was trained, like the latents."""


def draw_noise(seeds: Sequence[int], shape: tuple[int, int, int], draws: int) -> Tensor:
    """(draws, B, C, h, w) float32 on the CPU, `shape` being (C, h, w).

    Each seed has a generator of its own, so a picture's noise depends on nothing but its seed;
    its first draw is `torch.randn((1, C, h, w), generator=...)`, as diffusers makes it.
    """
    lanes = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    # Not the default dtype, which is another while a network is being loaded beside this.
    one = partial(torch.randn, (1, *shape), dtype=torch.float32)
    return torch.stack([torch.cat([one(generator=lane) for lane in lanes]) for _ in range(draws)])


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The same tensor on the device, on CUDA without waiting for the copy."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Sampling:
    """The way of a batch from noise to latents, as many steps at a time as one likes."""

    def __init__(self, model: Model, scheduler: Any, noise: Tensor) -> None:
        """Stand before the first step.

        Args:
            model: predicts noise or velocity from scaled latents.
            scheduler: as `schedulers.schedule` makes it; it is used up.
            noise: (draws, B, C, h, w) float32; draw 0 is where the latents begin, draw i + 1 is
                what a noisy sampler adds after step i.
        """
        self._model = model
        self._scheduler = scheduler
        self._noise = noise
        self._timesteps = upload(scheduler.timesteps.to(torch.float32), noise.device)
        self._latents: Tensor = noise[0] * scheduler.init_noise_sigma
        self._left = enumerate(scheduler.timesteps)

    def take(self, steps: int | None = None) -> Tensor:
        """Take so many of the steps that are left, or all.

        The latents then, (B, C, h, w) float32 on the device of the noise, not yet decoded.
        """
        for step, timestep in islice(self._left, steps):
            scaled = self._scheduler.scale_model_input(self._latents, timestep)
            moment = self._timesteps[step].expand(len(scaled))
            prediction = self._model(scaled, moment, step)
            added = {"noise": self._noise[step + 1]} if len(self._noise) > 1 else {}
            self._latents = self._scheduler.step(
                prediction, timestep, self._latents, return_dict=False, **added
            )[0]
        return self._latents
