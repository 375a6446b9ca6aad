"""Many layers at once carry what each carries alone, with few calls; on a CPU each is alone."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lora_files import COMPONENTS, Recipe, lora_at, write_kohya, write_peft
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from comicgen.diffusion import lora as lora_module
from comicgen.diffusion.lora import LoraWeights, read_changes
from comicgen.diffusion.models import Components
from comicgen.errors import CandidateError
from comicgen.pocket import MODEL
from comicgen.storyboard import Lora, in_order
from comicgen.weights import ModelFolder, normalised, read_lora

Home = tuple[str, str]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let a CPU sum so many bytes by one call."""
    return lambda size: monkeypatch.setitem(lora_module._AT_ONCE, "cpu", size)


def own(pocket: Components, dtype: torch.dtype = torch.float32) -> dict[str, nn.Module]:
    """Copies of the embedded model's modules."""
    return {name: copy.deepcopy(getattr(pocket, name)).to(dtype) for name in COMPONENTS}


def held(modules: Mapping[str, nn.Module]) -> dict[Home, Tensor]:
    return {
        (component, normalised(name)): parameter.detach().clone()
        for component, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def places(modules: Mapping[str, nn.Module]) -> list[int]:
    return [each.data_ptr() for module in modules.values() for each in module.parameters()]


def same(one: Mapping[Home, Tensor], other: Mapping[Home, Tensor]) -> bool:
    return all(torch.equal(one[home], other[home]) for home in one)


@pytest.fixture(scope="module")
def loras(tmp_path_factory: pytest.TempPathFactory, pocket: Components) -> list[Lora]:
    """The two that come along, one with alphas, and one that changes fewer layers."""
    folder = tmp_path_factory.mktemp("loras")
    alpha, few = Recipe(rank=7, alpha=3.0, seed=1), Recipe(seed=2, components=("text_encoder",))
    files = [
        *(MODEL.parent / "loras" / f"{name}.safetensors" for name in ("noir", "sophie")),
        write_kohya(folder / "alpha.safetensors", pocket.folder, alpha),
        write_peft(folder / "few.safetensors", pocket.folder, few),
    ]
    return [lora_at(file, weight) for file, weight in zip(files, (0.8, 1, -0.37, 1.3), strict=True)]


def sets(loras: Sequence[Lora]) -> list[list[Lora]]:
    noir, sophie, alpha, few = loras
    heavier = replace(noir, weight=1.0)
    return [[noir], [few], [sophie, noir], [alpha, few, heavier], [few], [], [noir, few]]


def plain(base: Tensor, changes: Sequence[tuple[Tensor, Tensor, float]]) -> Tensor:
    """A weight with up @ down * factor of each LoRA, one after the other, rounded once."""
    total = sum((up.float().flatten(1) @ down.float().flatten(1)) * f for up, down, f in changes)
    assert isinstance(total, Tensor)
    return (total.reshape(base.shape) + base).to(base.dtype)


def expected(base: Mapping[Home, Tensor], chosen: Sequence[Lora], model: ModelFolder) -> Any:
    changes: dict[Home, list[tuple[Tensor, Tensor, float]]] = {}
    for lora in in_order(chosen):
        tensors = load_file(lora.file)
        for layer in read_lora(lora.file, model).layers:
            alpha = tensors[layer.alpha].item() / layer.rank if layer.alpha else layer.scale
            change = tensors[layer.up], tensors[layer.down], lora.weight * alpha
            changes.setdefault((layer.component, layer.parameter), []).append(change)
    return {**base, **{home: plain(base[home], each) for home, each in changes.items()}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_cpu_every_weight_has_the_bits_of_the_plain_sum(
    dtype: torch.dtype, pocket: Components, loras: Sequence[Lora]
) -> None:
    modules = own(pocket, dtype)
    base, weights = held(modules), LoraWeights(modules, pocket.folder)
    for chosen in sets(loras):
        weights.set(chosen)

        assert same(held(modules), expected(base, chosen, pocket.folder))


@pytest.mark.parametrize("size", [1, 100_000, 2**28])
def test_at_once_a_set_has_the_same_bits_whenever_it_comes_back(
    size: int, at_once: Callable[[int], None], pocket: Components, loras: Sequence[Lora]
) -> None:
    """And within rounding those of layers alone; the model is in its own storage all the time."""
    at_once(size)
    modules = own(pocket)
    homes = places(modules)
    base, weights = held(modules), LoraWeights(modules, pocket.folder)
    seen = []
    for chosen in sets(loras):
        weights.set(chosen)
        seen.append(held(modules))
        for home, value in expected(base, chosen, pocket.folder).items():
            torch.testing.assert_close(seen[-1][home], value, atol=1e-6, rtol=1e-6)

    for chosen, before in reversed(list(zip(sets(loras), seen, strict=True))):
        weights.set(chosen)
        assert same(held(modules), before)
    assert places(modules) == homes


class Blocks(nn.Module):
    """`count` layers of each of two shapes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(8, 16) for _ in range(count))
        self.deep = nn.ModuleList(nn.Conv2d(4, 6, 3) for _ in range(count))

    def folder(self, model: ModelFolder) -> ModelFolder:
        shapes = {name: tuple(each.shape) for name, each in self.named_parameters()}
        return replace(model, layers={"unet": shapes})

    def lora(self, file: Path, seed: int, odd: str = "") -> Lora:
        """A LoRA for all of them; the one that is `odd` holds a number that is not finite."""
        random = np.random.default_rng(seed)
        tensors = {}
        for name, each in self.named_parameters():
            if name.endswith(".weight"):
                out, *into = each.shape
                ones = (1,) * (len(into) - 1)
                key = f"unet.{name.removesuffix('.weight')}"
                tensors[f"{key}.lora_A.weight"] = random.standard_normal((2, *into))
                tensors[f"{key}.lora_B.weight"] = random.standard_normal((out, 2, *ones))
        if odd:
            tensors[f"unet.{odd}.lora_B.weight"].flat[3] = np.nan
        save_file({key: each.astype(np.float32) for key, each in tensors.items()}, file)
        return lora_at(file)


class Calls(TorchDispatchMode):
    """Counts the operators that are called, without those that only look at what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def calls(count: int, folder: Path, model: ModelFolder) -> int:
    """Of a switch between two LoRAs that were read ahead."""
    blocks = Blocks(count)
    weights = LoraWeights({"unet": blocks}, blocks.folder(model))
    one, two = (blocks.lora(folder / f"{count}-{seed}.safetensors", seed) for seed in (1, 2))
    read = [read_changes(lora, blocks.folder(model)) for lora in (one, two)]
    weights.set([one], read)
    with Calls() as seen:
        weights.set([two], read)
    return seen.count


def test_the_calls_of_a_switch_are_as_many_for_ten_times_the_layers(
    at_once: Callable[[int], None], pocket: Components, tmp_path: Path
) -> None:
    at_once(2**28)
    few, many = (calls(count, tmp_path, pocket.folder) for count in (10, 100))

    kinds, others = 2, 8
    assert few == many <= 6 * kinds + others


def test_layers_of_a_kind_are_summed_in_portions(
    at_once: Callable[[int], None], pocket: Components, tmp_path: Path
) -> None:
    at_once(2**28)
    whole = calls(20, tmp_path, pocket.folder)
    at_once(5 * 4 * 6 * 36)  # five convolutions, or 8 linear layers, in float32

    portions = 4 + 3
    assert calls(20, tmp_path, pocket.folder) - whole == 6 * (portions - 2)


@pytest.mark.parametrize("odd", ["wide.7", "deep.3"])
def test_among_many_layers_the_one_that_is_not_finite_is_named(
    odd: str, at_once: Callable[[int], None], pocket: Components, tmp_path: Path
) -> None:
    at_once(2**28)
    blocks = Blocks(9)
    base = held({"unet": blocks})
    weights = LoraWeights({"unet": blocks}, blocks.folder(pocket.folder))
    weights.set([blocks.lora(tmp_path / "good.safetensors", 1)])

    with pytest.raises(CandidateError, match=rf"bad.safetensors: unet.{odd}.lora_B.weight holds"):
        weights.set([blocks.lora(tmp_path / "bad.safetensors", 2, odd)])
    assert same(held({"unet": blocks}), base)


def test_among_many_layers_the_one_that_is_beyond_its_dtype_is_named(
    at_once: Callable[[int], None], pocket: Components, tmp_path: Path
) -> None:
    at_once(2**28)
    blocks = Blocks(9).half()
    with torch.no_grad():
        blocks.wide[4].weight[:] = 65_000
    weights = LoraWeights({"unet": blocks}, blocks.folder(pocket.folder))
    lora = replace(blocks.lora(tmp_path / "bad.safetensors", 2), weight=300.0)

    with pytest.raises(CandidateError, match=r"unet.wide.4.lora_B.weight carries .* torch.float16"):
        weights.set([lora])
