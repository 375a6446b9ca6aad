"""What steers a batch: one lane for each picture, stacked into tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comicgen.diffusion.sampling import upload
from comicgen.diffusion.text import Embedding
from comicgen.sizes import Size


@dataclass(frozen=True, slots=True)
class Lane:
    """What one picture is drawn from; `image` is (1, 3, H, W) float32, absent without control."""

    prompt: Embedding
    negative: Embedding
    guidance: float
    image: Tensor | None = None
    weight: float = 0.0


def empty_lane(zeros: Embedding, size: Size, controlled: bool) -> Lane:
    """Input for a lane that holds no picture."""
    image = torch.zeros(1, 3, size.height, size.width) if controlled else None
    return Lane(prompt=zeros, negative=zeros, guidance=1.0, image=image)


@dataclass(frozen=True, slots=True)
class ControlInput:
    """Control images (B, 3, H, W) in 0..1 in the model's dtype, weights (B, 1, 1, 1) float32."""

    image: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True)
class Conditioning:
    """What steers a batch of B pictures, on the model's device.

    Hidden states are (B, 77, D) and pooled embeddings (B, P), in the model's dtype. `time_ids`
    is (B, 6) float32: height, width, crop top, crop left, target height, target width.
    `negative` and `guidance`, (B, 1, 1, 1) float32, are absent together: then the batch is
    unguided.
    """

    prompt: Embedding
    time_ids: Tensor
    negative: Embedding | None = None
    guidance: Tensor | None = None
    control: ControlInput | None = None


def stack(lanes: Sequence[Lane], size: Size, guided: bool) -> Conditioning:
    """The lanes of a batch as tensors, on the device and in the dtype of their embeddings."""
    prompt = _join([lane.prompt for lane in lanes])
    device, dtype = prompt.hidden.device, prompt.hidden.dtype
    images = [lane.image for lane in lanes if lane.image is not None]
    assert len(images) in (0, len(lanes))
    ids = [size.height, size.width, 0, 0, size.height, size.width]
    return Conditioning(
        prompt=prompt,
        time_ids=upload(torch.tensor([ids] * len(lanes), dtype=torch.float32), device),
        negative=_join([lane.negative for lane in lanes]) if guided else None,
        guidance=_scalars([lane.guidance for lane in lanes], device) if guided else None,
        control=ControlInput(
            upload(torch.cat(images), device).to(dtype),
            _scalars([lane.weight for lane in lanes], device),
        )
        if images
        else None,
    )


def _join(embeddings: Sequence[Embedding]) -> Embedding:
    return Embedding(
        torch.cat([each.hidden for each in embeddings]),
        torch.cat([each.pooled for each in embeddings]),
    )


def _scalars(values: Sequence[float], device: torch.device) -> Tensor:
    return upload(torch.tensor(values, dtype=torch.float32), device).view(-1, 1, 1, 1)
