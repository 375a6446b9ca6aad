"""Our kernels give torch's bits, for every shape that SDXL has and some that are awkward."""

import copy
from typing import Any

import full_size
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn

from comicgen.diffusion.lean import why_without_kernels
from comicgen.diffusion.precision import PRECISIONS

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


def assert_same_bits(one: Tensor, other: Tensor) -> None:
    """In the same places; with any NaN equal to any other."""
    assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
    whole = {2: torch.int16, 4: torch.int32}[one.dtype.itemsize]
    same = (one.view(whole) == other.view(whole)) | (one.isnan() & other.isnan())
    assert same.all(), f"{(~same).sum()} of {same.numel()}"


@pytest.fixture(scope="module")
def kernels() -> Any:
    from comicgen.diffusion import kernels

    return kernels


@pytest.fixture(scope="module")
def modules() -> Any:
    """Triton is imported where there is a GPU."""
    from comicgen.diffusion import kernel_modules

    return kernel_modules


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
        assert_same_bits(ours, F.group_norm(x, 32, weight, bias, eps))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_silu_of_every_number_has_torchs_bits(dtype: torch.dtype, kernels: Any) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16, device=DEVICE).view(dtype)
    every = patterns[patterns.isfinite()]
    nothing = torch.zeros_like(every)

    # Weights of 0 leave the biases alone.
    ours = kernels.group_norm(nothing.view(1, -1, 1, 1), 1, nothing, every, 1e-5, silu=True)
    assert torch.equal(ours.flatten(), F.silu(every))  # -0 has become 0


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

    assert_same_bits(kernels.add(x.clone(), bias), biased)
    assert_same_bits(kernels.add(x.clone(), bias, per_plane), timed)
    assert_same_bits(kernels.add(x.clone(), bias, None, residual), residual + biased)
    assert_same_bits(kernels.add(x.clone(), bias, per_plane, residual), residual + timed)


def test_what_does_not_lie_plane_by_plane_stays_so(kernels: Any) -> None:
    """A convolution may choose its kernel by the layout of what it is given."""
    plain = numbers(2, 64, 40, 24, dtype=torch.float16)
    turned = plain.to(memory_format=torch.channels_last)
    weight, bias = (numbers(64, dtype=torch.float16) for _ in range(2))

    ours = kernels.group_norm(turned, 8, weight, bias, 1e-5)
    assert_same_bits(ours, F.group_norm(turned, 8, weight, bias, 1e-5))
    for x, residual in ((turned, plain), (plain, turned), (turned, turned)):
        ours = kernels.add(x.clone(), bias, None, residual)
        assert_same_bits(ours, residual + (x + bias[:, None, None]))


def test_numbers_that_are_not_finite_stay_so(kernels: Any) -> None:
    x = numbers(1, 64, 40, 40, dtype=torch.float16)
    x[0, 3, 5, 7], x[0, 40, 1, 1] = torch.inf, torch.nan
    weight, bias = (numbers(64, dtype=torch.float16) for _ in range(2))

    ours = kernels.group_norm(x, 8, weight, bias, 1e-5)
    assert_same_bits(ours, F.group_norm(x, 8, weight, bias, 1e-5))


def test_a_network_keeps_its_parameters_and_its_bits(modules: Any) -> None:
    plain = nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1),
        nn.GroupNorm(8, 64),
        nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False),
        nn.Sequential(nn.GroupNorm(32, 64), nn.Conv2d(64, 8, 1), nn.GroupNorm(8, 8, affine=False)),
    ).to(DEVICE, torch.float16)
    other = copy.deepcopy(plain)
    modules.exchange(other)
    x = numbers(2, 4, 40, 56, dtype=torch.float16)

    assert list(other.state_dict()) == list(plain.state_dict())
    assert [type(each).__module__ for each in other if each is not other[3]] == [
        modules.__name__,
        modules.__name__,
        "torch.nn.modules.conv",
    ]
    with torch.inference_mode():
        assert_same_bits(other(x), plain(x))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("changes", [{}, {"out_channels": 96}, {"temb_channels": None}])
def test_resnet_blocks_keep_parameters_and_bits(
    changes: dict[str, Any], precision: str, modules: Any
) -> None:
    dtype = PRECISIONS[precision]
    settings = {"in_channels": 64, "temb_channels": 16, "groups": 8, **changes}
    plain = ResnetBlock2D(**settings).to(DEVICE, dtype).eval()
    block = modules.ResnetBlock(plain)
    temb = None if settings["temb_channels"] is None else numbers(2, 16, dtype=dtype)

    assert block.state_dict().keys() == plain.state_dict().keys()
    for spread in (1.7, 0.002):
        x = numbers(2, 64, 40, 56, dtype=dtype, spread=spread)
        before = x.clone()
        with torch.inference_mode():
            assert_same_bits(block(x, temb), plain(x, temb))
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
def test_other_blocks_are_left_to_diffusers(changes: dict[str, Any], modules: Any) -> None:
    settings = {"in_channels": 64, "temb_channels": 16, "groups": 8, **changes}
    plain = ResnetBlock2D(**settings).to(DEVICE).eval()
    other = nn.ModuleList([copy.deepcopy(plain)])
    modules.exchange(other)
    x, temb = numbers(2, 64, 40, 56, dtype=torch.float32), numbers(2, 16, dtype=torch.float32)

    assert type(other[0]) is ResnetBlock2D
    with torch.inference_mode():
        assert_same_bits(other[0](x, temb), plain(x, temb))


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_full_size_vae_decodes_to_the_same_bits(lanes: int, precision: str, modules: Any) -> None:
    """From its middle on, which gives what does not lie plane by plane."""
    torch.manual_seed(0)
    plain = full_size.vae(DEVICE).to(PRECISIONS[precision]).eval()
    other = copy.deepcopy(plain)
    modules.exchange(other)
    latents = numbers(lanes, 4, 96, 128, dtype=PRECISIONS[precision])

    with torch.inference_mode():
        pictures = [each.decode(latents, return_dict=False)[0] for each in (plain, other)]
    assert_same_bits(*pictures)
