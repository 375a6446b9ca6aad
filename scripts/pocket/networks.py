"""The parts of the pocket model: small networks of the very classes that SDXL is made of."""

import json
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
)

SHIPPED = Path(__file__).parents[2] / "comicgen" / "pocket"
CHANNELS, HEADS = (64, 128, 192), (2, 4, 6)
"""Of the UNet, from the finest level to the coarsest."""
TEXT_WIDTHS = (96, 128)
"""Of the two text encoders; the second is also the width of the pooled prompt."""
TEXT_LAYERS = 3
"""SDXL reads what enters the last layer, so that two of the first encoder's three are trained."""
SIZE_WIDTH = 32
"""Width of the embedding of each of SDXL's six size numbers."""
EDGE_CHANNELS = (16, 32, 64, 96)
"""Widths of the ControlNet's layers that bring a map down to the size of the latents."""
SCHEDULE = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
    "timestep_spacing": "leading",
    "steps_offset": 1,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
}
"""SDXL base's; the last three are read by other samplers than its own."""
OF_THE_MACHINE = ("_name_or_path", "is_local", "local_files_only")
"""What the libraries write into configs about where a model was loaded from."""


@dataclass
class Parts:
    """Everything that a diffusers SDXL folder holds, in the order of its data flow."""

    tokenizer: CLIPTokenizer
    tokenizer_2: CLIPTokenizer
    text_encoder: CLIPTextModel
    text_encoder_2: CLIPTextModelWithProjection
    unet: UNet2DConditionModel
    vae: AutoencoderKL
    scheduler: EulerDiscreteScheduler

    @property
    def networks(self) -> list[torch.nn.Module]:
        return [self.text_encoder, self.text_encoder_2, self.unet, self.vae]

    def to(self, device: torch.device) -> "Parts":
        for network in self.networks:
            network.to(device)
        for network in (self.unet, self.vae):
            network.to(memory_format=torch.channels_last)
        return self

    def save(self, folder: Path) -> None:
        """A diffusers folder in float16, in the place of what is there once it is whole."""
        for network in self.networks:
            network.half()
        for tokenizer in (self.tokenizer, self.tokenizer_2):  # as they came, not as last used
            tokenizer.backend_tokenizer.no_padding()
            tokenizer.backend_tokenizer.no_truncation()
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        new = folder.with_name(f"{folder.name}.new")
        StableDiffusionXLPipeline(
            **parts, force_zeros_for_empty_prompt=False, add_watermarker=False
        ).save_pretrained(new)
        for file in new.glob("*/*config.json"):
            config = json.loads(file.read_text())
            for key in OF_THE_MACHINE:
                config.pop(key, None)
            file.write_text(json.dumps(config, indent=2) + "\n")
        old = folder.with_name(f"{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    @classmethod
    def load(cls, folder: Path) -> "Parts":
        """From a diffusers folder, in float32."""
        pipeline = StableDiffusionXLPipeline.from_pretrained(
            folder, dtype=torch.float32, add_watermarker=False
        )
        return cls(**{field.name: getattr(pipeline, field.name) for field in fields(cls)})


def new_parts(seed: int = 0) -> Parts:
    """Untrained, with the tokenizers of the shipped model."""
    torch.manual_seed(seed)
    first, second = (
        CLIPTokenizer.from_pretrained(SHIPPED / "model" / name)
        for name in ("tokenizer", "tokenizer_2")
    )
    return Parts(
        first,
        second,
        CLIPTextModel(_text_config(TEXT_WIDTHS[0], 3, len(first), "quick_gelu", len(first) - 1)),
        CLIPTextModelWithProjection(_text_config(TEXT_WIDTHS[1], 4, len(second), "gelu", 0)),
        _unet(),
        _vae(),
        EulerDiscreteScheduler.from_config(SCHEDULE),
    )


def _text_config(width: int, heads: int, vocabulary: int, act: str, pad: int) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_hidden_layers=TEXT_LAYERS,
        num_attention_heads=heads,
        max_position_embeddings=77,
        hidden_act=act,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=pad,
    )


def _unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=CHANNELS,
        layers_per_block=1,
        transformer_layers_per_block=(1, 1, 1),
        attention_head_dim=HEADS,
        cross_attention_dim=sum(TEXT_WIDTHS),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=SIZE_WIDTH,
        projection_class_embeddings_input_dim=TEXT_WIDTHS[1] + 6 * SIZE_WIDTH,
        norm_num_groups=32,
    )


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        sample_size=256,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 64, 128, 128),
        layers_per_block=1,
        norm_num_groups=16,
        force_upcast=False,
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
    return controlnet


def size_numbers(size: tuple[int, int]) -> list[int]:
    """SDXL's six numbers of an uncropped picture of that width and height."""
    width, height = size
    return [height, width, 0, 0, height, width]
