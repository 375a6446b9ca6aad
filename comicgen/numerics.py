"""Numerics: the choice of kernels that a picture is drawn with. Known without torch.

`plain` are the kernels of torch and its libraries, `fused` those of comicgen's own modules, which
are faster and give other last bits. Fused numerics have a full name, `fused-1a2b3c4d`, whose digits
stand for everything that their bits depend on beside the picture's own inputs.
"""

import hashlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

Numerics = Literal["plain", "fused"]

FUSED = 2
"""Bumped when the fused modules give other bits; the changelog says why."""

PRECISIONS = ("fp16", "bf16")
"""In which there are fused kernels."""

_PACKAGES = ("triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def full_name(numerics: Numerics, gpu: str, torch: str) -> str:
    """What labels say: `plain`, or `fused` with a digest of the recipe, versions and the GPU."""
    if numerics == "plain":
        return numerics
    told = "\n".join([f"recipe {FUSED}", gpu, f"torch {torch}", *_versions()])
    return f"{numerics}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def kind_of(name: str) -> Numerics:
    """Plain or fused, of a full name."""
    return "fused" if name.startswith("fused") else "plain"


def why_not_fused(on_gpu: bool, precision: str) -> str:
    """Why there are no fused kernels here; "" where there are."""
    if not on_gpu:
        return "a CPU has none"
    if precision not in PRECISIONS:
        return f"there are none in {precision}, only in {' and '.join(PRECISIONS)}"
    return "" if _version("triton") else "they need Triton, which is not installed"


def _versions() -> Iterator[str]:
    for package in _PACKAGES:
        if found := _version(package):
            yield f"{package} {found}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
