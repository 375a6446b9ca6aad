"""One step of denoising: guidance, ControlNet and UNet as one function of tensors."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.attention import Attention
from comicgen.diffusion.conditioning import Conditioning
from comicgen.diffusion.lean import embed_once
from comicgen.diffusion.prepared import Named, Prepared


class Denoiser:
    """A UNet, and the ControlNet beside it, if any.

    Whatever may differ between two calls of `predict` with the same shapes is a tensor in its
    arguments; whether there is guidance or control is a choice made before.
    """

    def __init__(
        self, unet: Any, controlnet: Any = None, attention: Attention | None = None
    ) -> None:
        """`attention` None leaves the choice of its kernels to torch."""
        if controlnet is not None:
            embed_once(controlnet)
        self.unet = unet
        self.controlnet = controlnet
        self._attention = attention
        self._dtype = unet.dtype

    def weights(self) -> Iterator[Tensor]:
        """Every tensor that the networks read beside their inputs."""
        for network in (self.unet, self.controlnet):
            if network is not None:
                yield from network.parameters()
                yield from network.buffers()

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
            control_hint=torch.cat([self._hint(control.image)] * rows) if control else None,
            control_weight=torch.cat([control.weight] * rows) if control else None,
        )

    def predict(self, latents: Tensor, timestep: Tensor, prepared: Prepared) -> Tensor:
        """What the model predicts, noise or velocity: (B, C, h, w) float32 like the latents.

        The timestep is (B,) float32.

        Guidance combines in float32: negative + guidance * (prompt - negative)
        (arXiv 2207.12598).
        """
        sample = latents.to(self._dtype)
        if prepared.guidance is not None:
            sample, timestep = torch.cat([sample, sample]), torch.cat([timestep, timestep])
        with self._attending():
            noise: Tensor = self.unet(
                sample,
                timestep,
                return_dict=False,
                **_texts(prepared),
                **self._residuals(sample, timestep, prepared),
            )[0].to(torch.float32)
        if prepared.guidance is None:
            return noise
        negative, prompt = noise.chunk(2)
        return negative + prepared.guidance * (prompt - negative)

    def call(self, inputs: Named) -> Tensor:
        """`predict` of the tensors that bear its arguments' names."""
        return self.predict(inputs["latents"], inputs["timestep"], Prepared.of(inputs))

    @torch.no_grad()
    def _hint(self, image: Tensor) -> Tensor:
        assert self.controlnet is not None
        hint: Tensor = self.controlnet.controlnet_cond_embedding(image)
        return hint

    def _attending(self) -> AbstractContextManager[None]:
        return self._attention.kernels() if self._attention else nullcontext()

    def _residuals(self, sample: Tensor, timestep: Tensor, prepared: Prepared) -> dict[str, Any]:
        if prepared.control_hint is None:
            return {}
        assert self.controlnet is not None
        down, middle = self.controlnet(
            sample,
            timestep,
            controlnet_cond=prepared.control_hint,
            conditioning_scale=prepared.control_weight,
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
