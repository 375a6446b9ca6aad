"""What all training here shares: a time-bounded loop over steps that are CUDA graphs."""

import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import diffusers
import torch
import transformers
from channels_last import exchange
from ranks import RANK, agreed, average, begin_alike
from torch import Tensor

Loss = Callable[[], Tensor]
"""Draws a random batch and returns its mean loss, a scalar."""
START = time.monotonic()
GRAPHS = os.environ.get("POCKET_GRAPHS") != "0"
"""Set POCKET_GRAPHS=0 to call every step instead of replaying it, when a fault is looked for."""


def say(text: str) -> None:
    if RANK == 0:
        print(f"[{time.monotonic() - START:4.0f} s] {text}", file=sys.stderr, flush=True)


def hush() -> None:
    """No progress bars and warnings of the libraries between what is said."""
    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()


def device_and_dtype() -> tuple[torch.device, torch.dtype]:
    """Where networks are trained, and in which type: bfloat16 on a GPU, float32 elsewhere."""
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        return torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    return torch.device("cpu"), torch.float32


@dataclass(frozen=True)
class Course:
    """How long and how fast a network learns.

    seconds: of wall clock; rate: the learning rate at its peak, from which a half cosine leads
    down to zero; most: stop after so many steps, whatever the clock says.
    """

    seconds: float
    rate: float
    most: int | None = None
    warmup: int = 200

    def rate_at(self, step: int, done: float) -> float:
        rising = min(1.0, (step + 1) / self.warmup)
        return self.rate * rising * (0.5 + 0.5 * math.cos(math.pi * min(1.0, done)))


class Trainer:
    """Adam in float32 over networks of any type, with moving averages of their parameters.

    The networks see copies of the float32 parameters. On a GPU every loss becomes a CUDA graph
    (forward and backward), and the update another, which spares small networks the cost of their
    launches. Gradients are averaged over all processes and clipped to a norm of 1.
    """

    EVERY = 10
    """Steps between two looks at the clock and two updates of the averages."""

    def __init__(
        self, modules: Sequence[torch.nn.Module], dtype: torch.dtype, averaged_over: int = 500
    ) -> None:
        """Takes modules in float32 and turns them into `dtype`, until `finish`.

        averaged_over: steps, about, that a moving average looks back.
        """
        self.modules = modules
        self.seen = [p for m in modules for p in m.parameters() if p.requires_grad]
        self.device = self.seen[0].device
        self.master = [p.detach().float().clone() for p in self.seen]
        begin_alike(self.master)
        self.averages = [p.clone() for p in self.master]
        for module in modules:
            module.to(dtype)
            exchange(module)
        with torch.no_grad():
            torch._foreach_copy_(self.seen, self.master)
        self.share = self.EVERY / averaged_over
        self.rate = torch.zeros((), device=self.device)
        self.mean = torch.zeros((), device=self.device)
        self.graphed = self.device.type == "cuda" and GRAPHS
        self.pool = torch.cuda.graph_pool_handle() if self.graphed else None
        self.recorded: list[Callable[[], None]] = []
        self.gradients = self._laid_out(dtype)
        for master in self.master:
            master.grad = torch.zeros_like(master)
        self.adam = torch.optim.AdamW(
            self.master,
            self.rate,
            betas=(0.9, 0.99),
            weight_decay=0.0,
            fused=True,
            capturable=self.device.type == "cuda",
        )
        self.update = self._recorded(self._update)

    def _laid_out(self, dtype: torch.dtype) -> Tensor:
        """One piece of memory that holds the gradients of all parameters, each in its layout."""
        whole = torch.zeros(sum(p.numel() for p in self.seen), dtype=dtype, device=self.device)
        start = 0
        for p in self.seen:
            p.grad = whole.as_strided(p.size(), p.stride(), start)
            start += p.numel()
        return whole

    def step_of(self, loss: Loss) -> Callable[[], None]:
        """Forward and backward of a loss, to be called over and over."""

        def step() -> None:
            self.gradients.zero_()
            value = loss()
            value.backward()
            self.mean.lerp_(value.detach().float(), 0.02)

        return self._recorded(step)

    def _update(self) -> None:
        grads = [p.grad for p in self.seen]
        torch._foreach_copy_([p.grad for p in self.master], grads)
        torch.nn.utils.clip_grad_norm_(self.master, 1.0, foreach=True)
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.seen, self.master)

    def _recorded(self, step: Callable[[], None]) -> Callable[[], None]:
        if not self.graphed:
            return step
        self.recorded.append(step)  # a graph reads what the step holds, and does not hold it
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # the rate is zero or gradients alone are made: no weight moves
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # NCCL watches its own work from another thread, which a stricter mode forbids.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            step()
        return graph.replay

    def run(self, name: str, course: Course, next_step: Callable[[], None]) -> dict[str, float]:
        """Train until the time is over; `next_step` makes the gradients of one step.

        Returns steps, seconds and the moving average of the loss.
        """
        start, n, told = time.monotonic(), 0, 0.0
        elapsed = 0.0
        while elapsed < course.seconds and n != course.most:
            done = elapsed / course.seconds if course.most is None else n / course.most
            self.rate.fill_(course.rate_at(n, done))
            next_step()
            average(self.gradients)
            self.update()
            n += 1
            if n % self.EVERY == 0:
                self._follow(n // self.EVERY)
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                elapsed = agreed(time.monotonic() - start, self.device)
                if elapsed - told > 20:
                    told = elapsed
                    say(f"{name}: step {n}, {n / elapsed:.1f} a second, loss {self.mean:.4f}")
        self.rate.zero_()
        self._follow(max(1, n // self.EVERY))
        say(f"{name}: {n} steps, loss {self.mean:.4f}")
        return {"steps": n, "seconds": round(elapsed), "loss": round(self.mean.item(), 5)}

    @torch.no_grad()
    def _follow(self, count: int) -> None:
        torch._foreach_lerp_(self.averages, self.master, max(self.share, 1 / count))

    @torch.no_grad()
    def finish(self) -> None:
        """Turn the modules into float32 again, with the moving averages as parameters.

        They draw better than the last values.
        """
        for module in self.modules:
            module.float().eval()
        for p, last in zip(self.seen, self.averages, strict=True):
            p.grad = None
            p.copy_(last)


def every(period: int, work: Callable[[], None]) -> Callable[[], None]:
    """Does the work at each `period`-th call: of steps, so that processes do it together."""
    calls = itertools.count(1)

    def call() -> None:
        if next(calls) % period == 0:
            work()

    return call


def at_random(steps: Sequence[Callable[[], None]], shares: Sequence[float]) -> Callable[[], None]:
    """One of the steps at each call; the same in all processes."""
    rng = random.Random(0)
    return lambda: rng.choices(steps, shares)[0]()


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
        """Error of predict(noisy latents, timesteps) at one random timestep a picture.

        latents: (n, 4, h, w), float32; predict takes and returns such, in any type.
        """
        steps = torch.randint(len(self.signal), (len(latents),), device=latents.device)
        signal = self.signal[steps].view(-1, 1, 1, 1)
        noise = torch.randn_like(latents)
        noisy = signal.sqrt() * latents + (1 - signal).sqrt() * noise
        error = (predict(noisy, steps).float() - noise).square().mean((1, 2, 3))
        return (error * self.weight[steps]).mean()


def batches(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))
