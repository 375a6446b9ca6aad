"""diffusers' arm: its unmodified pipeline, used with care."""

from collections.abc import Mapping, Sequence
from typing import Any

import diffusers.utils.logging
import torch
import transformers.utils.logging
from diffusers import (
    ControlNetModel,
    StableDiffusionXLControlNetPipeline,
    StableDiffusionXLPipeline,
)
from PIL import Image

from bench_parts.setting import Setting, say
from bench_parts.timing import timed
from comicgen.diffusion.sampling import draw_noise
from comicgen.plan import Candidate
from comicgen.storyboard import Panel

TRIAL_STEPS = 4


class Diffusers:
    """A pipeline of SDXL's."""

    def __init__(self, setting: Setting, pipe: Any = None) -> None:
        """The pipeline of the setting's model, loaded now, unless one is given."""
        self.setting = setting
        if pipe is None:
            pipe = StableDiffusionXLPipeline.from_pretrained(
                setting.parts.model, dtype=setting.dtype, add_watermarker=False
            )
            pipe.to(setting.device)
        pipe.set_progress_bar_config(disable=True)
        self.pipe = pipe
        assert self.pipe.unet.dtype == self.pipe.vae.dtype == setting.dtype

    def beside(self, panel: Panel) -> "Diffusers":
        """A pipeline of the same networks with the panel's ControlNet; this one without any."""
        if panel.control is None:
            return self
        network: Any = ControlNetModel.from_pretrained(
            panel.control.model.folder, dtype=self.setting.dtype
        )
        pipe = StableDiffusionXLControlNetPipeline.from_pipe(
            self.pipe, controlnet=network.to(self.setting.device), dtype=self.setting.dtype
        )
        return Diffusers(self.setting, pipe)

    def draw(
        self, candidates: Sequence[Candidate], steps: int, more: Mapping[str, Any]
    ) -> list[Image.Image]:
        """All candidates of a panel in one call; see `draw`."""
        return draw(self.pipe, candidates, steps, more)

    def given(self, panel: Panel) -> dict[str, Any]:
        """A panel's embeddings, and control if it has one."""
        return {**self.encode(panel), **control_of(panel)}

    @torch.inference_mode()
    def encode(self, panel: Panel) -> dict[str, Any]:
        """A panel's embeddings, by the names under which a pipeline takes them."""
        prompt, negative, pooled, negative_pooled = self.pipe.encode_prompt(
            panel.prompt, negative_prompt=panel.negative, do_classifier_free_guidance=True
        )
        return {
            "prompt_embeds": prompt,
            "negative_prompt_embeds": negative,
            "pooled_prompt_embeds": pooled,
            "negative_pooled_prompt_embeds": negative_pooled,
        }

    def choose_decoding(self, candidates: Sequence[Candidate], texts: Mapping[str, Any]) -> str:
        """Let the VAE take a batch whole or sliced, whichever a short trial finds quicker.

        Where neither works, most often for want of memory, it stays sliced.
        """
        vae, seconds = self.pipe.vae, {}
        ways = {"whole": vae.disable_slicing, "sliced": vae.enable_slicing}
        for way, switch in ways.items():
            switch()
            try:
                seconds[way] = self.trial(candidates, texts)
            except RuntimeError as error:
                say(f"diffusers, {len(candidates)} pictures decoded {way}: {error}")
        chosen = min(seconds, key=lambda way: seconds[way], default="sliced")
        ways[chosen]()
        return chosen

    def trial(self, candidates: Sequence[Candidate], texts: Mapping[str, Any]) -> float:
        """Seconds of a call of few steps, after one that warms up."""
        calls = [
            timed(lambda: draw(self.pipe, candidates, TRIAL_STEPS, texts), self.setting.device)
            for _ in range(2)
        ]
        return calls[-1][0]


def words(panel: Panel) -> dict[str, Any]:
    """A panel's texts, by the names under which a pipeline takes them."""
    return {"prompt": panel.prompt, "negative_prompt": panel.negative}


def control_of(panel: Panel) -> dict[str, Any]:
    """A panel's control, by the names under which a pipeline takes it."""
    if panel.control is None:
        return {}
    with Image.open(panel.control.image) as image:
        return {
            "image": image.convert("RGB"),
            "controlnet_conditioning_scale": panel.control.weight,
            "control_guidance_start": panel.control.start,
            "control_guidance_end": panel.control.end,
        }


def quiet() -> None:
    """Without the libraries' own progress bars and advice."""
    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()


@torch.inference_mode()
def draw(
    pipe: Any, candidates: Sequence[Candidate], steps: int, more: Mapping[str, Any]
) -> list[Image.Image]:
    """All candidates of a panel in one call, and the quickest way to the host.

    The pipeline's own way, output_type="pil", would convert there, from float32.
    """
    pixels = call(pipe, candidates, steps, {"output_type": "pt", **more})
    levels = (pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(each) for each in levels]


@torch.inference_mode()
def call(pipe: Any, candidates: Sequence[Candidate], steps: int, more: Mapping[str, Any]) -> Any:
    """What a pipeline draws of all candidates of a panel, from the noise that comicgen draws.

    A pipeline in 16 bits draws its own in 16 bits, which is other noise with some versions of
    torch.
    """
    panel = candidates[0].panel
    return pipe(
        width=panel.size.width,
        height=panel.size.height,
        num_inference_steps=steps,
        guidance_scale=panel.guidance,
        num_images_per_prompt=len(candidates),
        latents=_noise(pipe, candidates),
        **more,
    ).images


def _noise(pipe: Any, candidates: Sequence[Candidate]) -> torch.Tensor:
    size, factor = candidates[0].panel.size, pipe.vae_scale_factor
    shape = pipe.unet.config.in_channels, size.height // factor, size.width // factor
    noise = draw_noise([each.seed for each in candidates], shape, draws=1)[0]
    return noise.to(pipe.device, pipe.dtype)
