"""One step of denoising: guidance, ControlNet and UNet as one function of tensors."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.conditioning import Conditioning, ControlInput


@dataclass(frozen=True, slots=True)
class Prepared:
    """Conditioning as the networks take it: R rows, 2B with guidance (negative first), else B."""

    hidden: Tensor
    pooled: Tensor
    time_ids: Tensor
    guidance: Tensor | None
    control: ControlInput | None

    def without_control(self) -> "Prepared":
        """The same outside the ControlNet's window."""
        return replace(self, control=None)


class Denoiser:
    """A UNet, and the ControlNet beside it, if any.

    Whatever may differ between two calls of `predict` with the same shapes is a tensor in its
    arguments; whether there is guidance or control is a choice made before.
    """

    def __init__(self, unet: Any, controlnet: Any | None = None) -> None:
        self.unet = unet
        self.controlnet = controlnet
        self._dtype = unet.dtype

    def prepare(self, conditioning: Conditioning) -> Prepared:
        """Everything that stays the same over the steps of a batch, once."""
        assert (conditioning.negative is None) == (conditioning.guidance is None)
        prompt, negative = conditioning.prompt, conditioning.negative
        rows = 1 if negative is None else 2
        control = conditioning.control
        return Prepared(
            hidden=torch.cat([negative.hidden, prompt.hidden]) if negative else prompt.hidden,
            pooled=torch.cat([negative.pooled, prompt.pooled]) if negative else prompt.pooled,
            time_ids=torch.cat([conditioning.time_ids] * rows),
            guidance=conditioning.guidance,
            control=control
            and ControlInput(torch.cat([control.image] * rows), torch.cat([control.weight] * rows)),
        )

    def predict(self, latents: Tensor, timestep: Tensor, prepared: Prepared) -> Tensor:
        """What the model predicts, noise or velocity: (B, C, h, w) float32 like the latents.

        The timestep is () float32.

        Guidance combines in float32: negative + guidance * (prompt - negative)
        (arXiv 2207.12598).
        """
        sample = latents.to(self._dtype)
        if prepared.guidance is not None:
            sample = torch.cat([sample, sample])
        timesteps = timestep.expand(len(sample))
        noise: Tensor = self.unet(
            sample,
            timesteps,
            return_dict=False,
            **_texts(prepared),
            **self._residuals(sample, timesteps, prepared),
        )[0].to(torch.float32)
        if prepared.guidance is None:
            return noise
        negative, prompt = noise.chunk(2)
        return negative + prepared.guidance * (prompt - negative)

    def _residuals(self, sample: Tensor, timesteps: Tensor, prepared: Prepared) -> dict[str, Any]:
        if prepared.control is None:
            return {}
        assert self.controlnet is not None
        down, middle = self.controlnet(
            sample,
            timesteps,
            controlnet_cond=prepared.control.image,
            conditioning_scale=prepared.control.weight,
            return_dict=False,
            **_texts(prepared),
        )
        # The float32 weights widen the residuals.
        return {
            "down_block_additional_residuals": tuple(each.to(sample.dtype) for each in down),
            "mid_block_additional_residual": middle.to(sample.dtype),
        }


def _texts(prepared: Prepared) -> dict[str, Any]:
    return {
        "encoder_hidden_states": prepared.hidden,
        "added_cond_kwargs": {"text_embeds": prepared.pooled, "time_ids": prepared.time_ids},
    }
