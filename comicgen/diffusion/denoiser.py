"""One step of denoising: guidance, ControlNet and UNet as one function of tensors."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.attention import Attention
from comicgen.diffusion.conditioning import Conditioning
from comicgen.diffusion.fused import text_keys, weights
from comicgen.diffusion.lean import embed_once
from comicgen.diffusion.prepared import Named, Prepared
from comicgen.diffusion.together import Together, Verdicts


class Denoiser:
    """A UNet, and the ControlNet beside it, if any.

    Whatever may differ between two calls of `predict` with the same shapes is a tensor in its
    arguments; whether there is guidance or control is a choice made before.
    """

    def __init__(
        self,
        unet: Any,
        controlnet: Any = None,
        attention: Attention | None = None,
        verdicts: Verdicts | None = None,
    ) -> None:
        """`attention` None leaves the choice of its kernels to torch.

        `verdicts` remember which operations may be done for a whole batch.
        """
        if controlnet is not None:
            embed_once(controlnet)
        self.unet = unet
        self.controlnet = controlnet
        self._attention = attention
        self._verdicts = verdicts or Verdicts()
        self._dtype = unet.dtype
        networks = [each for each in (unet, controlnet) if each is not None]
        self._modules = [module for network in networks for module in network.modules()]

    def weights(self) -> Iterator[Tensor]:
        """Every tensor that the networks read beside their inputs.

        It is asked at every batch, and `parameters` would search the modules anew, for 15 ms.
        """
        for module in self._modules:
            for own in (module._parameters, module._buffers):
                yield from (each for each in own.values() if each is not None)

    @torch.no_grad()
    def prepare(self, conditioning: Conditioning) -> Prepared:
        """Everything that stays the same over the steps of a batch, once."""
        assert (conditioning.negative is None) == (conditioning.guidance is None)
        prompt, negative = conditioning.prompt, conditioning.negative
        control, pictures = conditioning.control, len(conditioning.time_ids)
        hidden = _rows(prompt.hidden, negative.hidden if negative else None)
        with self._exactly(pictures):
            text = text_keys(self.unet, hidden)
            control_text = text_keys(self.controlnet, hidden) if control else None
            hint = self._hint(control.image) if control else None

        def doubled(tensor: Tensor) -> Tensor:
            return _rows(tensor, tensor if negative else None)

        return Prepared(
            text=text,
            pooled=_rows(prompt.pooled, negative.pooled if negative else None),
            time_ids=doubled(conditioning.time_ids),
            guidance=conditioning.guidance,
            control_text=control_text,
            control_hint=None if hint is None else doubled(hint),
            control_weight=doubled(control.weight) if control else None,
        )

    def predict(self, latents: Tensor, timestep: Tensor, prepared: Prepared) -> Tensor:
        """What the model predicts, noise or velocity: (B, C, h, w) float32 like the latents.

        The timestep is (B,) float32. A picture has the bits that it would have alone. On a CPU,
        which gains nothing by batches and parts every operation among its threads, it is alone.

        Guidance combines in float32: negative + guidance * (prompt - negative)
        (arXiv 2207.12598).
        """
        lanes = len(latents)
        if lanes > 1 and not latents.is_cuda:
            alone = (
                self.predict(own, time, prepared.of_lane(lane, lanes))
                for lane, (own, time) in enumerate(
                    zip(latents.chunk(lanes), timestep.chunk(lanes), strict=True)
                )
            )
            return torch.cat(list(alone))
        sample = latents.to(self._dtype)
        if prepared.guidance is not None:
            sample, timestep = _rows(sample, sample), _rows(timestep, timestep)
        with self._exactly(lanes):
            noise: Tensor = self.unet(
                sample,
                timestep,
                prepared.text,
                added_cond_kwargs=_added(prepared),
                return_dict=False,
                **self._residuals(sample, timestep, prepared),
            )[0].to(torch.float32)
        if prepared.guidance is None:
            return noise
        negative, prompt = noise[0::2], noise[1::2]
        return negative + prepared.guidance * (prompt - negative)

    def call(self, inputs: Named) -> Tensor:
        """`predict` of the tensors that bear its arguments' names."""
        return self.predict(inputs["latents"], inputs["timestep"], Prepared.of(inputs))

    def _hint(self, image: Tensor) -> Tensor:
        """Embedded control images, each with the bits that it has alone."""
        embed = self.controlnet.controlnet_cond_embedding
        hint: Tensor = (
            embed(image) if image.is_cuda else torch.cat([*map(embed, image.chunk(len(image)))])
        )
        return hint

    @contextmanager
    def _exactly(self, pictures: int) -> Iterator[None]:
        """With the chosen kernels, and for each picture the bits that it has alone."""
        with ExitStack() as stack:
            if self._attention:
                stack.enter_context(self._attention.kernels())
            if pictures > 1:
                stack.enter_context(Together(pictures, self._verdicts))
            yield

    def _residuals(self, sample: Tensor, timestep: Tensor, prepared: Prepared) -> dict[str, Any]:
        if prepared.control_hint is None:
            return {}
        assert self.controlnet is not None
        assert prepared.control_weight is not None
        down, middle = self.controlnet(
            sample,
            timestep,
            prepared.control_text,
            prepared.control_hint,
            weights(self.controlnet, prepared.control_weight),
            added_cond_kwargs=_added(prepared),
            return_dict=False,
        )
        # Float32 weights widen the residuals of a network that is not fused.
        return {
            "down_block_additional_residuals": tuple(each.to(sample.dtype) for each in down),
            "mid_block_additional_residual": middle.to(sample.dtype),
        }


def _rows(own: Tensor, negative: Tensor | None) -> Tensor:
    """The rows of each picture, side by side."""
    return own if negative is None else torch.stack([negative, own], dim=1).flatten(0, 1)


def _added(prepared: Prepared) -> dict[str, Tensor]:
    return {"text_embeds": prepared.pooled, "time_ids": prepared.time_ids}
