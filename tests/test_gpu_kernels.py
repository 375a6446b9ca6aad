"""Our kernels give torch's bits, for every shape that SDXL has and some that are awkward."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from comicgen.diffusion.lean import why_without_kernels
from comicgen.diffusion.models import PRECISIONS

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
SHAPES = (
    (16, 320, 128, 128),
    (2, 960, 152, 104),
    (2, 1920, 52, 76),
    (3, 640, 84, 48),
    (16, 2560, 32, 32),
    (1, 1280, 24, 42),
    (1, 512, 128, 128),
    (1, 256, 1024, 1024),
    (1, 128, 1216, 832),
    (1, 64, 33, 31),  # neither chains nor planes come out even
    (3, 32, 23, 23),  # a single step of every chain, and 17 numbers more
)


def numbers(*shape: int, dtype: torch.dtype, spread: float = 1.7) -> Tensor:
    """About as in a network."""
    chance = torch.Generator(DEVICE).manual_seed(sum(shape))
    return (torch.randn(shape, generator=chance, device=DEVICE) * spread + 0.4).to(dtype)


@pytest.fixture(scope="module")
def kernels() -> Any:
    from comicgen.diffusion import kernels

    return kernels


@pytest.mark.parametrize("precision", PRECISIONS)
def test_they_are_used_on_this_machine(precision: str) -> None:
    assert why_without_kernels(DEVICE, PRECISIONS[precision]) == ""


@pytest.mark.parametrize("spread", [1.7, 0.03, 0.002])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm_has_torchs_bits(
    shape: tuple[int, int, int, int], precision: str, spread: float, kernels: Any
) -> None:
    """With a small spread, eps counts."""
    dtype = PRECISIONS[precision]
    x = numbers(*shape, dtype=dtype, spread=spread)
    weight, bias = (numbers(shape[1], dtype=dtype) for _ in range(2))

    for eps in (1e-5, 1e-6):
        ours = kernels.group_norm(x, 32, weight, bias, eps)
        assert torch.equal(ours, F.group_norm(x, 32, weight, bias, eps))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_silu_of_every_number_has_torchs_bits(dtype: torch.dtype, kernels: Any) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16, device=DEVICE).view(dtype)
    every = patterns[patterns.isfinite()]
    nothing = torch.zeros_like(every)

    # Weights of 0 leave the biases alone.
    ours = kernels.group_norm(nothing.view(1, -1, 1, 1), 1, nothing, every, 1e-5, silu=True)
    assert torch.equal(ours.flatten(), F.silu(every))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_rounds_every_sum(
    shape: tuple[int, int, int, int], precision: str, kernels: Any
) -> None:
    dtype = PRECISIONS[precision]
    x, residual = (numbers(*shape, dtype=dtype, spread=each) for each in (1.7, 30.0))
    bias, per_plane = numbers(shape[1], dtype=dtype), numbers(*shape[:2], dtype=dtype)
    biased = x + bias[:, None, None]
    timed = biased + per_plane[:, :, None, None]

    assert torch.equal(kernels.add(x.clone(), bias), biased)
    assert torch.equal(kernels.add(x.clone(), bias, per_plane), timed)
    assert torch.equal(kernels.add(x.clone(), bias, None, residual), residual + biased)
    assert torch.equal(kernels.add(x.clone(), bias, per_plane, residual), residual + timed)


def test_what_is_not_laid_out_plane_by_plane_is_taken_too(kernels: Any) -> None:
    x = numbers(2, 64, 40, 24, dtype=torch.float16).to(memory_format=torch.channels_last)
    weight, bias = (numbers(64, dtype=torch.float16) for _ in range(2))

    ours = kernels.group_norm(x, 8, weight, bias, 1e-5)
    assert torch.equal(ours, F.group_norm(x, 8, weight, bias, 1e-5))
    expected = x + bias[:, None, None] + x
    assert torch.equal(kernels.add(x.clone(), bias, None, x), expected)


def test_numbers_that_are_not_finite_stay_so(kernels: Any) -> None:
    x = numbers(1, 64, 40, 40, dtype=torch.float16)
    x[0, 3, 5, 7], x[0, 40, 1, 1] = torch.inf, torch.nan
    weight, bias = (numbers(64, dtype=torch.float16) for _ in range(2))

    ours = kernels.group_norm(x, 8, weight, bias, 1e-5)
    theirs = F.group_norm(x, 8, weight, bias, 1e-5)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours[~ours.isnan()], theirs[~theirs.isnan()])


def test_a_network_keeps_its_parameters_and_its_bits(kernels: Any) -> None:
    plain = nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1),
        nn.GroupNorm(8, 64),
        nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False),
        nn.Sequential(nn.GroupNorm(32, 64), nn.Conv2d(64, 8, 1), nn.GroupNorm(8, 8, affine=False)),
    ).to(DEVICE, torch.float16)
    other = copy.deepcopy(plain)
    kernels.exchange(other)
    x = numbers(2, 4, 40, 56, dtype=torch.float16)

    assert list(other.state_dict()) == list(plain.state_dict())
    assert [type(each).__module__ for each in other if each is not other[3]] == [
        kernels.__name__,
        kernels.__name__,
        "torch.nn.modules.conv",
    ]
    with torch.inference_mode():
        assert torch.equal(other(x), plain(x))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("changes", [{}, {"out_channels": 96}, {"temb_channels": None}])
def test_resnet_blocks_keep_parameters_and_bits(
    changes: dict[str, Any], precision: str, kernels: Any
) -> None:
    dtype = PRECISIONS[precision]
    settings = {"in_channels": 64, "temb_channels": 16, "groups": 8, **changes}
    plain = ResnetBlock2D(**settings).to(DEVICE, dtype).eval()
    block = kernels.ResnetBlock(plain)
    temb = None if settings["temb_channels"] is None else numbers(2, 16, dtype=dtype)

    assert block.state_dict().keys() == plain.state_dict().keys()
    for spread in (1.7, 0.002):
        x = numbers(2, 64, 40, 56, dtype=dtype, spread=spread)
        before = x.clone()
        with torch.inference_mode():
            assert torch.equal(block(x, temb), plain(x, temb))
        assert torch.equal(x, before)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_embedding_norm": "scale_shift"},
        {"up": True},
        {"down": True},
        {"skip_time_act": True},
        {"non_linearity": "gelu"},
        {"dropout": 0.1},
        {"output_scale_factor": 2.0},
        {"conv_shortcut_bias": False, "out_channels": 96},
    ],
)
def test_other_blocks_are_left_to_diffusers(changes: dict[str, Any], kernels: Any) -> None:
    settings = {"in_channels": 64, "temb_channels": 16, "groups": 8, **changes}
    plain = ResnetBlock2D(**settings).to(DEVICE).eval()
    other = nn.ModuleList([copy.deepcopy(plain)])
    kernels.exchange(other)
    x, temb = numbers(2, 64, 40, 56, dtype=torch.float32), numbers(2, 16, dtype=torch.float32)

    assert type(other[0]) is ResnetBlock2D
    with torch.inference_mode():
        assert torch.equal(other[0](x, temb), plain(x, temb))
