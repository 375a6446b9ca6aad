"""Loading a model in diffusers' folder layout, from this machine only."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import diffusers.utils.logging
import torch
import transformers.utils.logging
from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from comicgen.diffusion.fused import fuse, fuse_decoder
from comicgen.diffusion.lean import lean
from comicgen.errors import InputError
from comicgen.sizes import Size
from comicgen.weights import ModelFolder, Weights, read_controlnet, read_model


def _compilers() -> tuple[type[Exception], ...]:
    """What Triton raises where it cannot compile."""
    try:
        from triton.errors import TritonError
    except ImportError:
        return ()
    return (TritonError,)


# What the libraries raise over a config or an input that they cannot follow; the last ones, and
# what a full disk makes of them, while kernels are compiled.
REFUSALS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    OSError,
    SubprocessError,
    *_compilers(),
)

_UNREADABLE: tuple[type[Exception], ...] = (*REFUSALS, SafetensorError, StrictDataclassError)

# Parts of the whole CLIP that some text encoders are saved with, and that SDXL does without.
_UNUSED = {"logit_scale", "text_projection.weight"}

# The second text encoder's tensors by the names that the module gives them, from either spelling;
# for the first one transformers knows both by itself.
_SPELLING = {r"^(?!text_model\.|text_projection|logit_scale)": "text_model."}


@dataclass(frozen=True, slots=True)
class Components:
    """The networks of an SDXL model on one device, without gradients, in evaluation mode.

    All are in `dtype`, except a VAE whose config says that 16 bits are too few for it; a fused
    one, for which they are enough, is in float16.
    """

    folder: ModelFolder
    unet: Any
    vae: Any
    text_encoder: Any
    text_encoder_2: Any
    device: torch.device
    dtype: torch.dtype
    fused: bool = False

    def latent_shape(self, size: Size) -> tuple[int, int, int]:
        """(C, h, w) of the latents of a picture."""
        factor = 2 ** (len(self.vae.config.block_out_channels) - 1)
        return self.unet.config.in_channels, size.height // factor, size.width // factor


def load_model(
    path: Path, device: torch.device, dtype: torch.dtype, fused: bool = False
) -> Components:
    """Load an SDXL model from a folder; `fused` is for a GPU and 16 bits.

    Raises:
        InputError: a part is missing, is broken or does not fit its config.
    """
    folder = read_model(path)

    def part(kind: type[Any], name: str, wanted: torch.dtype = dtype) -> Any:
        return _load(kind, path / name, folder.weights[name], device, wanted)

    unet = part(UNet2DConditionModel, "unet")
    if fused:
        vae = part(AutoencoderKL, "vae", torch.float16)
        fuse(unet)
        fuse_decoder(vae)
    else:
        vae = part(AutoencoderKL, "vae", torch.float32 if folder.force_upcast else dtype)
        _quicken(unet)
        _quicken(vae)
    return Components(
        folder=folder,
        unet=unet,
        vae=vae,
        text_encoder=part(CLIPTextModel, "text_encoder"),
        text_encoder_2=part(CLIPTextModelWithProjection, "text_encoder_2"),
        device=device,
        dtype=dtype,
        fused=fused,
    )


def load_controlnet(path: Path, model: Components) -> Any:
    """Load a ControlNet from a folder, to work beside `model`.

    Raises:
        InputError: it does not fit the model, or is broken.
    """
    weights = read_controlnet(path, model.folder).weights
    network = _load(ControlNetModel, path, weights, model.device, model.dtype)
    if model.fused:
        fuse(network)
    else:
        _quicken(network)
    return network


def _load(
    kind: type[Any], path: Path, weights: Weights, device: torch.device, dtype: torch.dtype
) -> Any:
    with _quiet():
        try:
            module, info = kind.from_pretrained(
                path,
                dtype=dtype,
                variant=weights.variant,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                **({"key_mapping": _SPELLING} if kind is CLIPTextModelWithProjection else {}),
            )
        except _UNREADABLE as error:
            raise InputError(f"{path}: cannot be loaded ({error}); copy it again") from error
    _check_fit(path, info)
    return module.eval().requires_grad_(False).to(device)


def _quicken(network: Any) -> None:
    """Make it leaner on a GPU, and lay it as a CPU's convolutions like it on a CPU, in place."""
    if network.device.type == "cuda":
        lean(network)
    else:
        network.to(memory_format=torch.channels_last)


def _check_fit(path: Path, info: Mapping[str, Iterable[str]]) -> None:
    """Left to themselves, both libraries draw on with random numbers for what is missing."""
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"{path}: lacks {len(missing)} tensors such as {missing[0]}; copy it again"
        )
    if unused := sorted(set(info["unexpected_keys"]) - _UNUSED):
        raise InputError(
            f"{path}: its config.json has no place for {len(unused)} of its tensors, such as "
            f"{unused[0]}; copy it again"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and advice that the libraries print for every part."""
    libraries = (diffusers.utils.logging, transformers.utils.logging)
    before = [(each.is_progress_bar_enabled(), each.get_verbosity()) for each in libraries]
    for library in libraries:
        library.disable_progress_bar()
        library.set_verbosity_error()
    try:
        yield
    finally:
        for library, (bar, verbosity) in zip(libraries, before, strict=True):
            library.set_verbosity(verbosity)
            if bar:
                library.enable_progress_bar()
