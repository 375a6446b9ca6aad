"""What a graph cache is given: a network to be called over and over, and with what."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from comicgen.diffusion.prepared import Named
from comicgen.plan import GraphKey

Predict = Callable[[Tensor, Tensor], Tensor]
"""(latents (B, C, h, w) float32, timestep (B,) float32) -> the prediction, like the latents."""


class Network(Protocol):
    """What is captured: see `comicgen.diffusion.denoiser.Denoiser`."""

    def call(self, inputs: Named) -> Tensor:
        """The function."""
        ...

    def weights(self) -> Iterator[Tensor]:
        """What it reads beside its inputs; a graph goes on reading it where it lay."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """A network to be called with the settings of a batch, over and over, in one bucket.

    `latents`, (B, C, h, w) float32, only tells the shape and the device.
    """

    key: GraphKey
    network: Network
    settings: Named
    latents: Tensor

    def inputs(self, latents: Tensor, timestep: Tensor) -> dict[str, Tensor]:
        """All inputs of a step."""
        return {"latents": latents, "timestep": timestep, **self.settings}
