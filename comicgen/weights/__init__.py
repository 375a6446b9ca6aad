"""What model, LoRA and ControlNet files are, told by their headers and configs alone.

No tensor is read, so this is fast, needs no torch, and opens files of any origin safely.
"""

from comicgen.weights.controlnet import ControlNetFolder, read_controlnet
from comicgen.weights.describe import describe
from comicgen.weights.folder import Weights
from comicgen.weights.header import Header, Tensor, read_header
from comicgen.weights.lora import LoraFile, LoraLayer, read_lora
from comicgen.weights.model import ModelFolder, normalised, read_model

__all__ = [
    "ControlNetFolder",
    "Header",
    "LoraFile",
    "LoraLayer",
    "ModelFolder",
    "Tensor",
    "Weights",
    "describe",
    "normalised",
    "read_controlnet",
    "read_header",
    "read_lora",
    "read_model",
]
