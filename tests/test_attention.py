"""Attention's kernels are chosen once, and nothing of torch's own choice is changed for others."""

import itertools
from typing import Any

import pytest
import torch
from test_lean import noise, prediction
from torch.nn.functional import scaled_dot_product_attention

from comicgen.diffusion import attention
from comicgen.diffusion.attention import Attention, choose
from comicgen.diffusion.models import Components

NAMES = ("cudnn", "flash", "efficient", "math")


def flags() -> list[bool]:
    """Which backends torch may use: those above, and one that extensions bring."""
    cuda: Any = torch.backends.cuda
    return [
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        torch._C._get_overrideable_sdp_enabled(),
    ]


def order() -> list[int]:
    """In which torch tries them."""
    return list(torch._C._get_sdp_priority_order())


def test_the_choice_works_on_the_processor(pocket: Components) -> None:
    rows = noise(2, 4, 64, 32)
    with choose(pocket.unet).kernels():
        out = scaled_dot_product_attention(rows, rows, rows)

    assert out.isfinite().all()


@pytest.mark.parametrize("first", NAMES)
def test_the_first_that_works_for_every_width_is_chosen(
    first: str, pocket: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def works(name: str, widths: set[int], device: torch.device, dtype: torch.dtype) -> bool:
        asked.append((name, widths, device, dtype))
        return name == first

    monkeypatch.setattr(attention, "_works", works)

    assert choose(pocket.unet) == Attention(first)
    place = ({32}, pocket.device, pocket.dtype)
    assert asked == [(name, *place) for name in NAMES[: NAMES.index(first) + 1]]


def test_a_backend_that_the_device_lacks_is_passed_over_in_silence(pocket: Components) -> None:
    """Torch would warn of it, and a warning is an error here."""
    assert choose(pocket.unet).name not in ("cudnn", "efficient")


@pytest.mark.parametrize("enabled", list(itertools.product([False, True], repeat=3)))
def test_choosing_leaves_torchs_flags_as_they_were(
    enabled: tuple[bool, ...], pocket: Components
) -> None:
    cudnn, flash, efficient = enabled
    setters = torch.backends.cuda
    former = flags()
    try:
        setters.enable_cudnn_sdp(cudnn)
        setters.enable_flash_sdp(flash)
        setters.enable_mem_efficient_sdp(efficient)
        before = flags()
        with choose(pocket.unet).kernels():
            pass

        assert flags() == before
    finally:
        setters.enable_cudnn_sdp(former[0])
        setters.enable_flash_sdp(former[1])
        setters.enable_mem_efficient_sdp(former[2])


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_this_backend_and_those_after_it_in_this_order(name: str) -> None:
    allowed = NAMES[NAMES.index(name) :]
    with Attention(name).kernels():
        assert flags() == [*(each in allowed for each in NAMES), False]
        assert order()[: len(allowed)] == [attention.BACKENDS[each].value for each in allowed]


def test_torchs_flags_and_order_are_as_they_were_after_an_error() -> None:
    before = flags(), order()
    with pytest.raises(KeyError), Attention("cudnn").kernels():
        raise KeyError

    assert (flags(), order()) == before


def test_the_chosen_kernels_draw_what_torchs_own_choice_draws(pocket: Components) -> None:
    chosen = choose(pocket.unet)
    with chosen.kernels():
        one = prediction(pocket.unet)

    assert torch.equal(one, prediction(pocket.unet))


def test_the_last_resort_draws_the_same_but_for_rounding(pocket: Components) -> None:
    with Attention("math").kernels():
        one = prediction(pocket.unet)

    torch.testing.assert_close(one, prediction(pocket.unet), atol=1e-4, rtol=1e-4)
