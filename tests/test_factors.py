"""A LoRA's factors lie side by side, and are multiplied as if each were alone."""

from collections.abc import Mapping
from math import inf

import pytest
import torch
from torch import Tensor

from comicgen.diffusion.factors import Factors, arrange, stacked, summed_alone, summed_at_once
from comicgen.weights import LoraLayer

SHAPES = {"a": (6, 2, 5), "b": (4, 3, 5), "c": (6, 2, 5), "d": (6, 2, 9)}
"""(out, rank, in * kernel) of layers; d is a convolution with a kernel of 3x3."""


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator("cpu").manual_seed(1)
    found = {}
    for name, (out, rank, into) in SHAPES.items():
        conv = name == "d"
        down = (rank, 1, 3, 3) if conv else (rank, into)
        up = (out, rank, 1, 1) if conv else (out, rank)
        for key, shape in ((f"{name}.down", down), (f"{name}.up", up)):
            found[key] = torch.randn(shape, generator=generator).to(dtype)
    return found


def layers(alphas: Mapping[str, str] | None = None) -> list[LoraLayer]:
    alphas = alphas or {}
    return [
        LoraLayer("unet", name, f"{name}.down", f"{name}.up", alphas.get(name), rank, 1.0)
        for name, (_, rank, _) in SHAPES.items()
    ]


def up_and_down(factors: Factors, numbers: Tensor) -> tuple[Tensor, Tensor]:
    out, rank, into, _ = factors.kind
    [up] = stacked([(numbers, factors.up)], (out, rank))
    [down] = stacked([(numbers, factors.down)], (rank, into))
    return up, down


def test_every_factor_lies_once_in_the_numbers() -> None:
    given = tensors()
    found, numbers = arrange(layers(), given)

    assert numbers.numel() == sum(each.numel() for each in given.values())
    assert sorted(each.home for each in found) == [("unet", name) for name in SHAPES]
    for each in found:
        up, down = up_and_down(each, numbers)
        assert torch.equal(up, given[each.layer.up].flatten(1))
        assert torch.equal(down, given[each.layer.down].flatten(1))


def test_layers_of_a_kind_are_stacked_without_a_copy() -> None:
    found, numbers = arrange(layers(), tensors())
    kind = (6, 2, 5, 1.0)
    alike = [each for each in found if each.kind == kind]
    [alone] = [each for each in found if each.kind == (4, 3, 5, 1.0)]

    ups = stacked([(numbers, each.up) for each in alike], (6, 2))
    assert [each.home[1] for each in alike] == ["a", "c"]
    assert ups.untyped_storage().data_ptr() == numbers.untyped_storage().data_ptr()
    assert alone.layer.up == "b.up"


def test_what_does_not_follow_each_other_is_stacked_too() -> None:
    one, other = torch.arange(6.0), torch.arange(10.0, 16)
    places = [(one, 2), (other, 0), (one, 0)]

    assert stacked(places, (1, 2)).tolist() == [[[2, 3]], [[10, 11]], [[0, 1]]]
    assert stacked([(one, 0), (other, 2)], (2,)).tolist() == [[0, 1], [12, 13]]


def test_another_alpha_makes_another_kind() -> None:
    given = tensors() | {"a.alpha": torch.tensor(1), "c.alpha": torch.tensor(2.0).half()}
    found, _ = arrange(layers({"a": "a.alpha", "c": "c.alpha"}), given)

    scales = {each.home[1]: each.kind[3] for each in found}
    assert scales == {"a": 0.5, "b": 1.0, "c": 1.0, "d": 1.0}
    assert [each.home[1] for each in found] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_file_keeps_its_dtype(dtype: torch.dtype) -> None:
    assert arrange(layers(), tensors(dtype))[1].dtype == dtype


def test_other_and_mixed_dtypes_become_float32() -> None:
    mixed = tensors() | {"a.up": tensors()["a.up"].half()}
    for given in (tensors(torch.float64), tensors(torch.float8_e4m3fn), mixed):
        found, numbers = arrange(layers(), given)

        assert numbers.dtype == torch.float32
        for each in found:
            up, _ = up_and_down(each, numbers)
            assert torch.equal(up, given[each.layer.up].flatten(1).float())


@pytest.mark.parametrize("key", ["a.up", "d.down", "b.alpha"])
def test_the_tensor_that_is_not_finite_is_named(key: str) -> None:
    given = tensors() | {"b.alpha": torch.tensor(1.0)}
    given[key].view(-1)[-1] = inf
    found, numbers = arrange(layers({"b": "b.alpha"}), given)

    assert {each.home[1]: each.odd(numbers) for each in found if each.odd(numbers)} == {key[0]: key}


def test_where_memory_cannot_be_pinned_other_memory_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def empty(*size: int, pin_memory: bool = False, **kwargs: torch.dtype) -> Tensor:
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return torch.zeros(*size, **kwargs)

    asked: list[bool] = []
    expected = arrange(layers(), tensors())[1]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch, "empty", empty)

    assert torch.equal(arrange(layers(), tensors())[1], expected)
    assert asked == [True, False]


def products(seed: int, count: int, layers: int) -> list[tuple[Tensor, Tensor, float]]:
    generator = torch.Generator("cpu").manual_seed(seed)

    def one(rank: int) -> tuple[Tensor, Tensor]:
        up = torch.randn(layers, 24, rank, generator=generator)
        return up, torch.randn(layers, rank, 40, generator=generator)

    return [(*one(4 + number), 0.7 - number) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_layer_alone_has_the_bits_of_plain_products_summed_one_by_one(count: int) -> None:
    given = products(1, count, 1)
    plain = [(up[0] @ down[0]) * factor for up, down, factor in given]
    expected = plain[0]
    for each in plain[1:]:
        expected = expected + each

    assert torch.equal(summed_alone(given), expected[None])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_many_layers_at_once_have_the_sums_that_each_has_alone(count: int) -> None:
    given = products(2, count, 5)
    alone = [
        summed_alone([(up[i : i + 1], down[i : i + 1], factor) for up, down, factor in given])
        for i in range(5)
    ]

    torch.testing.assert_close(summed_at_once(given), torch.cat(alone), atol=1e-5, rtol=1e-5)
