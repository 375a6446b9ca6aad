"""What a denoiser is given beside latents and timestep, as tensors with names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

Named = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Conditioning as the networks take it: R rows, one a picture, or two with guidance.

    A picture's rows lie together, its negative first. Texts as the UNet takes them, (R, 77, T),
    and pooled embeddings (R, P) are in the model's dtype, `time_ids` (R, 6) float32. `guidance`,
    (B, 1, 1, 1) float32, is absent without guidance. Texts as the ControlNet takes them, control
    images, embedded by it as (R, C, h, w) in the model's dtype, and weights (R, 1, 1, 1) float32
    are absent without control, and outside its window.
    """

    text: Tensor
    pooled: Tensor
    time_ids: Tensor
    guidance: Tensor | None = None
    control_text: Tensor | None = None
    control_hint: Tensor | None = None
    control_weight: Tensor | None = None

    @classmethod
    def of(cls, named: Named) -> Self:
        """The inverse of `named`; other names are left out."""
        return cls(**{each.name: named[each.name] for each in fields(cls) if each.name in named})

    def named(self) -> dict[str, Tensor]:
        """Its tensors by their names, without what is absent."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def of_lane(self, lane: int, lanes: int) -> Self:
        """What one of so many pictures has of it."""
        parts = {name: value.chunk(lanes)[lane] for name, value in self.named().items()}
        return type(self)(**parts)

    def without_control(self) -> Self:
        """The same outside the ControlNet's window."""
        return replace(self, control_text=None, control_hint=None, control_weight=None)


_RANGES = {
    "timestep": (1.0, 999.0),
    "time_ids": (0.0, 1536.0),
    "guidance": (2.0, 9.0),
    "control_weight": (0.4, 1.2),
}


def invented(like: Named, seed: int) -> dict[str, Tensor]:
    """Inputs of the same shapes and dtypes that a real batch could have, from a seed.

    Uniform in its range where a name has one, else normal.
    """
    some = next(iter(like.values()))
    chance = torch.Generator(some.device).manual_seed(seed)
    drawn = {}
    for name, value in like.items():
        own = torch.empty(value.shape, device=value.device)
        if name in _RANGES:
            own.uniform_(*_RANGES[name], generator=chance)
        else:
            own.normal_(generator=chance)
        drawn[name] = own.to(value.dtype)
    return drawn
