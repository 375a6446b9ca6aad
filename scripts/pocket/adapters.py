"""The two adapters of the pocket model: what they are, what they learn from, how they are kept."""

from pathlib import Path

import torch
from diffusers import ControlNetModel, StableDiffusionXLPipeline, UNet2DConditionModel
from lines import crests, dilated, steepness
from noir import noir
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from scenes import MODEL, Scenes
from torch import Tensor
from torch.nn import functional
from training import Diffusion, Loss

RANK = 8
LAYERS = ["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "conv1", "conv2"]
"""Attention, feed-forward, and the convolutions of the residual blocks: the finest level of this
UNet has no attention, and it is there that small things get their colour."""
NOIR_STRENGTH, LINEART_STRENGTH = 1.25, 0.85
"""What weight 1 of the kept files is in terms of the trained ones. Guidance brings back colours
that a caption names, and a stronger LoRA takes them away; the full ControlNet, trained also on
captions that contradict the lines, washes out some pictures where they do."""
EDGE_CHANNELS = (16, 32, 64, 96)
"""Widths of the ControlNet's layers that bring a map down to the size of the latents."""


def frozen_unet(device: torch.device) -> UNet2DConditionModel:
    unet = UNet2DConditionModel.from_pretrained(MODEL, subfolder="unet", dtype=torch.float32)
    return unet.requires_grad_(False).to(device, memory_format=torch.channels_last)


def add_lora(unet: UNet2DConditionModel) -> list[Tensor]:
    """Give the UNet a LoRA; return its parameters."""
    unet.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=LAYERS))
    return [p for p in unet.parameters() if p.requires_grad]


def save_lora(unet: UNet2DConditionModel, file: Path) -> None:
    layers = {
        name: (tensor * NOIR_STRENGTH if "lora_B" in name else tensor).half().contiguous()
        for name, tensor in get_peft_model_state_dict(unet).items()
    }
    StableDiffusionXLPipeline.save_lora_weights(
        file.parent, unet_lora_layers=layers, weight_name=file.name
    )


def new_controlnet(unet: UNet2DConditionModel) -> ControlNetModel:
    """The small form, without cross-attention, its convolutions begun as copies of the UNet's."""
    shape = unet.config
    controlnet = ControlNetModel(
        down_block_types=("DownBlock2D",) * len(shape.block_out_channels),
        mid_block_type="UNetMidBlock2D",
        block_out_channels=shape.block_out_channels,
        layers_per_block=shape.layers_per_block,
        transformer_layers_per_block=1,
        attention_head_dim=shape.attention_head_dim,
        cross_attention_dim=shape.cross_attention_dim,
        use_linear_projection=True,
        addition_embed_type=shape.addition_embed_type,
        addition_time_embed_dim=shape.addition_time_embed_dim,
        projection_class_embeddings_input_dim=shape.projection_class_embeddings_input_dim,
        norm_num_groups=shape.norm_num_groups,
        conditioning_embedding_out_channels=EDGE_CHANNELS,
    )
    own = controlnet.state_dict()
    shared = {k: v for k, v in unet.state_dict().items() if k in own and v.shape == own[k].shape}
    controlnet.load_state_dict(shared, strict=False)
    return controlnet.to(unet.device, memory_format=torch.channels_last)


@torch.no_grad()
def save_controlnet(controlnet: ControlNetModel, folder: Path) -> None:
    for output in (*controlnet.controlnet_down_blocks, controlnet.controlnet_mid_block):
        for parameter in output.parameters():
            parameter.mul_(LINEART_STRENGTH)
    controlnet.half().save_pretrained(folder)


def words(
    scenes: Scenes, index: Tensor, dropped: float, swapped: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Prompts and pooled prompts of the scenes at `index`.

    A share `dropped` of them is made empty, a share `swapped` is taken from any other scene.
    """
    others = torch.randint_like(index, len(scenes))
    index = torch.where(torch.rand(len(index), device=index.device) < swapped, others, index)
    empty = torch.rand(len(index), 1, device=index.device) < dropped
    prompts = torch.where(empty[..., None], scenes.no_prompt, scenes.prompts[index])
    return prompts, torch.where(empty, scenes.no_pooled, scenes.pooled[index])


@torch.no_grad()
def encoded(vae: torch.nn.Module, pictures: Tensor) -> Tensor:
    """Latents of pictures (n, 3, h, w), -1 to 1, that decode closer to them than a plain encoding.

    The encoder never saw greys without colour and tints them: what comes out wrong is asked for
    again, the other way.
    """
    pictures = pictures.to(vae.dtype)
    returned = vae.decode(vae.encode(pictures).latent_dist.mode()).sample
    return vae.encode(2 * pictures - returned).latent_dist.mode()


def noir_latents(vae: torch.nn.Module, scenes: Scenes) -> Tensor:
    """The scenes turned noir, as the UNet sees them: (n, 4, h/8, w/8)."""
    parts = [encoded(vae, noir(part)) for part in scenes.pictures.split(64)]
    return torch.cat(parts) * vae.config.scaling_factor


def noir_loss(
    unet: UNet2DConditionModel, scenes: Scenes, latents: Tensor, diffusion: Diffusion, batch: int
) -> Loss:
    time_ids = scenes.time_ids.expand(batch, -1)

    def loss() -> Tensor:
        index = torch.randint(len(scenes), (batch,), device=latents.device)
        prompts, pooled = words(scenes, index, dropped=0.1)
        extra = {"text_embeds": pooled, "time_ids": time_ids}

        def predict(noisy: Tensor, steps: Tensor) -> Tensor:
            return unet(noisy, steps, prompts, added_cond_kwargs=extra).sample

        return diffusion.loss(latents[index], predict)

    return loss


def as_if_drawn(slopes: Tensor) -> Tensor:
    """Maps (n, 3, h, w) from slopes: of varied detail and thickness, some with pieces missing."""
    count, _, height, width = slopes.shape

    def each(low: float, high: float) -> Tensor:
        return torch.empty(count, 1, 1, 1, device=slopes.device).uniform_(low, high)

    thin = crests(slopes, each(14, 40))
    width_choice = each(0, 1)
    mask = torch.where(width_choice < 0.15, thin, dilated(thin))
    mask = torch.where(width_choice > 0.85, dilated(thin, 5), mask)
    cells = torch.rand(count, 1, height // 16, width // 16, device=slopes.device)
    kept = functional.interpolate((cells > each(-0.25, 0.25)).float(), size=(height, width))
    return (mask * kept).expand(-1, 3, -1, -1)


def lineart_loss(
    unet: UNet2DConditionModel,
    controlnet: ControlNetModel,
    scenes: Scenes,
    diffusion: Diffusion,
    batch: int,
) -> Loss:
    slopes = torch.cat([steepness(part) for part in scenes.pictures.split(256)])
    time_ids = scenes.time_ids.expand(batch, -1)

    def loss() -> Tensor:
        index = torch.randint(len(scenes), (batch,), device=slopes.device)
        prompts, pooled = words(scenes, index, dropped=0.3, swapped=0.3)
        maps = as_if_drawn(slopes[index])
        extra = {"text_embeds": pooled, "time_ids": time_ids}

        def predict(noisy: Tensor, steps: Tensor) -> Tensor:
            down, mid = controlnet(
                noisy, steps, prompts, maps, added_cond_kwargs=extra, return_dict=False
            )
            return unet(
                noisy,
                steps,
                prompts,
                added_cond_kwargs=extra,
                down_block_additional_residuals=down,
                mid_block_additional_residual=mid,
            ).sample

        return diffusion.loss(scenes.latents[index], predict)

    return loss
