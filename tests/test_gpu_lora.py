"""On a GPU a LoRA set is the CPU's to within rounding, and has the same bits each time."""

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from lora_files import COMPONENTS, Recipe, lora_at, write_kohya, write_peft
from torch import Tensor, nn

from comicgen.diffusion.lora import LoraWeights, read_changes
from comicgen.diffusion.models import Components
from comicgen.storyboard import Lora

pytestmark = pytest.mark.gpu


def own(pocket: Components, device: str) -> dict[str, nn.Module]:
    """Copies of the embedded model's modules, in float16."""
    torch.cuda.init()
    parts = {name: copy.deepcopy(getattr(pocket, name)) for name in COMPONENTS}
    return {name: part.to(device, torch.float16) for name, part in parts.items()}


def held(modules: dict[str, nn.Module]) -> list[Tensor]:
    parameters = [each for module in modules.values() for each in module.parameters()]
    return [each.detach().to("cpu", copy=True) for each in parameters]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory, pocket: Components) -> list[list[Lora]]:
    folder = tmp_path_factory.mktemp("loras")
    half, text = Recipe(rank=8, seed=1, dtype=np.float16), Recipe(components=("text_encoder",))
    first = lora_at(write_peft(folder / "a.safetensors", pocket.folder, half), 0.8)
    second = lora_at(write_kohya(folder / "b.safetensors", pocket.folder, Recipe(alpha=3.0)), -0.3)
    third = lora_at(write_peft(folder / "c.safetensors", pocket.folder, text))
    return [[first], [second], [third], [first, second, third], [third], [first], []]


def test_a_gpu_holds_the_cpus_weights_to_within_their_last_place(
    sets: Sequence[Sequence[Lora]], pocket: Components
) -> None:
    ours, theirs = own(pocket, "cuda"), own(pocket, "cpu")
    on_gpu, on_cpu = (LoraWeights(each, pocket.folder) for each in (ours, theirs))
    for chosen in sets:
        on_gpu.set(chosen)
        on_cpu.set(chosen)

        for one, other in zip(held(ours), held(theirs), strict=True):
            torch.testing.assert_close(one, other, rtol=2**-10, atol=2**-20)


def test_a_set_has_the_same_bits_whatever_came_before_and_whenever_it_was_read(
    sets: Sequence[Sequence[Lora]], pocket: Components
) -> None:
    modules = own(pocket, "cuda")
    places = [each.data_ptr() for module in modules.values() for each in module.parameters()]
    weights, seen = LoraWeights(modules, pocket.folder), []
    for chosen in sets:
        weights.set(chosen)
        seen.append(held(modules))
    for chosen, before in reversed(list(zip(sets, seen, strict=True))):
        weights.set(chosen, [read_changes(lora, pocket.folder) for lora in chosen])
        assert same(held(modules), before)
    for chosen, before in zip(sets, seen, strict=True):
        fresh = own(pocket, "cuda")
        LoraWeights(fresh, pocket.folder).set(chosen)
        assert same(held(fresh), before)

    assert places == [
        each.data_ptr() for module in modules.values() for each in module.parameters()
    ]


def test_a_file_is_read_into_pinned_memory(pocket: Components, sets: Sequence[list[Lora]]) -> None:
    torch.cuda.init()

    assert read_changes(sets[0][0], pocket.folder).numbers.is_pinned()
