"""The training loop that both adapters share."""

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

Loss = Callable[[], Tensor]
"""Draws a random batch and returns its mean loss, a scalar."""


@dataclass(frozen=True)
class Plan:
    """How long and how fast one adapter learns; `rate` is the learning rate at its peak."""

    steps: int
    batch: int
    rate: float
    warmup: int = 100

    def rate_at(self, step: int) -> float:
        """Linear warm-up, then half a cosine down to zero."""
        rising = min(1.0, (step + 1) / self.warmup)
        return self.rate * rising * (0.5 + 0.5 * math.cos(math.pi * step / self.steps))


class Averages:
    """Moving averages of parameters, which give better pictures than their last values."""

    EVERY, SHARE = 10, 0.03

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.values = [p.detach().clone() for p in parameters]
        self.count = 0

    @torch.no_grad()
    def follow(self) -> None:
        self.count += 1
        for value, parameter in zip(self.values, self.parameters, strict=True):
            value.lerp_(parameter, max(self.SHARE, 1 / self.count))

    @torch.no_grad()
    def install(self) -> None:
        for value, parameter in zip(self.values, self.parameters, strict=True):
            parameter.copy_(value)


@dataclass(frozen=True)
class Diffusion:
    """Epsilon prediction on a scheduler's noise levels.

    signal: share of the picture left at each timestep (alpha-bar); weight: min-SNR weighting with
    gamma 5 for epsilon (Hang et al. 2023, https://arxiv.org/abs/2303.09556). Both (1000,).
    """

    signal: Tensor
    weight: Tensor

    @classmethod
    def of(cls, alphas_cumprod: Tensor, device: torch.device) -> "Diffusion":
        signal = alphas_cumprod.to(device)
        ratio = signal / (1 - signal)
        weight = ratio.clamp(max=5) / ratio
        return cls(signal, weight / weight.mean())

    def loss(self, latents: Tensor, predict: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Error of predict(noisy latents, timesteps) at one random timestep a picture."""
        latents = latents.float()
        steps = torch.randint(len(self.signal), (len(latents),), device=latents.device)
        signal = self.signal[steps].view(-1, 1, 1, 1)
        noise = torch.randn_like(latents)
        noisy = signal.sqrt() * latents + (1 - signal).sqrt() * noise
        error = (predict(noisy, steps).float() - noise).square().mean((1, 2, 3))
        return (error * self.weight[steps]).mean()


@contextmanager
def mixed_precision(device: torch.device) -> Iterator[None]:
    # A cached cast would be recorded once and go stale when a graph is replayed.
    with torch.autocast(
        device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False
    ):
        yield


def recorded(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a CUDA graph, which spares a small net the cost of its launches."""
    if device.type != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def train(
    name: str,
    parameters: Sequence[Tensor],
    losses: Sequence[Loss],
    plan: Plan,
    device: torch.device,
) -> dict[str, float]:
    """Train `parameters` in place, on a random one of `losses` at each step.

    Returns the last moving average of the loss, the steps and the seconds taken.
    """
    start = time.monotonic()
    rate, mean = torch.zeros((), device=device), torch.ones((), device=device)
    optimizer = torch.optim.AdamW(
        parameters, rate, betas=(0.9, 0.99), fused=True, capturable=device.type == "cuda"
    )

    def step(loss: Loss) -> None:
        optimizer.zero_grad(set_to_none=True)
        with mixed_precision(device):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        mean.lerp_(value.detach(), 0.02)

    # The rate is still zero, so recording moves no parameter.
    steps = [recorded(lambda loss=loss: step(loss), device) for loss in losses]
    averages, order = Averages(parameters), random.Random(0)
    for n in range(plan.steps):
        rate.fill_(plan.rate_at(n))
        order.choice(steps)()
        if n % Averages.EVERY == 0:
            averages.follow()
        if n % max(1, plan.steps // 10) == 0:
            say(f"{name}: step {n} of {plan.steps}, loss {mean.item():.4f}", start)
    averages.install()
    say(f"{name}: trained, loss {mean.item():.4f}", start)
    return {"loss": mean.item(), "steps": plan.steps, "seconds": time.monotonic() - start}


def say(text: str, start: float) -> None:
    print(f"[{time.monotonic() - start:4.0f} s] {text}", file=sys.stderr, flush=True)
