"""LoRAs change the embedded model as diffusers would, and leave it as it was."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from lora_files import COMPONENTS, Recipe, factors, lora_at, write_kohya, write_peft
from torch import nn

import comicgen
from comicgen.diffusion.lora import LoraWeights
from comicgen.weights import ModelFolder, normalised, read_model

POCKET = Path(comicgen.__file__).parent / "pocket" / "model"
Writer = Callable[[Path, ModelFolder, Recipe], Path]
Modules = dict[str, nn.Module]


@pytest.fixture(scope="module")
def pocket() -> ModelFolder:
    return read_model(POCKET)


def _load() -> StableDiffusionXLPipeline:
    pipeline = StableDiffusionXLPipeline.from_pretrained(POCKET, add_watermarker=False)
    return pipeline.to(torch.float32)


def _modules(pipeline: StableDiffusionXLPipeline) -> Modules:
    return {component: getattr(pipeline, component) for component in COMPONENTS}


@pytest.fixture(scope="module")
def shared() -> Modules:
    """The embedded model's modules in fp32."""
    return _modules(_load())


@pytest.fixture
def modules(shared: Modules) -> Iterator[Modules]:
    """Pristine modules, and pristine again afterwards."""
    parameters = [it for module in shared.values() for it in module.parameters()]
    pristine = [parameter.detach().clone() for parameter in parameters]
    yield shared
    with torch.no_grad():
        for parameter, copy in zip(parameters, pristine, strict=True):
            parameter.copy_(copy)


def _weights(modules: Modules) -> dict[tuple[str, str], torch.Tensor]:
    return {
        (component, normalised(name)): parameter.detach().clone()
        for component, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def _outputs(modules: Modules) -> dict[str, torch.Tensor]:
    """The output of each module for one fixed input, without gradients."""
    random = torch.Generator("cpu").manual_seed(3)
    latents = torch.randn(1, 4, 16, 24, generator=random)
    text = torch.randn(1, 77, 224, generator=random)
    pooled = torch.randn(1, 128, generator=random)
    ids = torch.randint(0, 1900, (1, 77), generator=random)
    added = {"text_embeds": pooled, "time_ids": torch.tensor([[128.0, 192, 0, 0, 128, 192]])}
    with torch.no_grad():
        return {
            "unet": modules["unet"](latents, 500, text, added_cond_kwargs=added)[0],
            "text_encoder": modules["text_encoder"](ids)[0],
            "text_encoder_2": modules["text_encoder_2"](ids)[0],
        }


def _adapter_deltas(modules: Modules) -> dict[tuple[str, str], torch.Tensor]:
    """What PEFT would add to each weight for the adapters that are loaded and active."""
    return {
        (component, normalised(f"{name}.weight")): sum(
            layer.get_delta_weight(adapter) for adapter in layer.active_adapters
        )
        for component, module in modules.items()
        for name, layer in module.named_modules()
        if hasattr(layer, "get_delta_weight")
    }


@pytest.mark.parametrize("alpha", [None, 1.0])
@pytest.mark.parametrize("write", [write_kohya, write_peft])
def test_weights_and_outputs_are_those_of_diffusers(
    tmp_path: Path, pocket: ModelFolder, modules: Modules, write: Writer, alpha: float | None
) -> None:
    lora = lora_at(write(tmp_path / "a.safetensors", pocket, Recipe(alpha=alpha)), weight=0.8)
    theirs = _load()
    theirs.load_lora_weights(lora.file.parent, weight_name=lora.file.name, adapter_name="a")
    theirs.set_adapters(["a"], [lora.weight])
    deltas = _adapter_deltas(_modules(theirs))
    before, plain = _weights(modules), _outputs(modules)

    LoraWeights(modules, pocket).set([lora])

    after = _weights(modules)
    assert {home for home in after if not torch.equal(after[home], before[home])} == set(deltas)
    assert len(deltas) == len(list(factors(pocket, Recipe())))
    for home, delta in deltas.items():
        error = (after[home] - before[home] - delta).norm() / delta.norm()
        assert error < 1e-3, home
    drawn, wanted = _outputs(modules), _outputs(_modules(theirs))
    for component in COMPONENTS:
        assert (wanted[component] - plain[component]).abs().max() > 1e-2
        torch.testing.assert_close(drawn[component], wanted[component], atol=1e-4, rtol=1e-4)


def _digest(modules: Modules) -> str:
    digest = hashlib.sha256()
    for module in modules.values():
        for parameter in module.parameters():
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def test_switches_of_the_real_model_restore_every_weight(
    tmp_path: Path, pocket: ModelFolder, modules: Modules
) -> None:
    unet = Recipe(seed=1, components=("unet",))
    both = Recipe(seed=2, components=("text_encoder", "text_encoder_2"))
    first = lora_at(write_kohya(tmp_path / "a.safetensors", pocket, unet), 0.5)
    second = lora_at(write_peft(tmp_path / "b.safetensors", pocket, both))
    weights = LoraWeights(modules, pocket)
    base = _digest(modules)

    digests = []
    for chosen in ([first], [], [second], [first, second], [second, first], [first], []):
        weights.set(chosen)
        digests.append(_digest(modules))

    assert digests[1] == digests[6] == base
    assert digests[0] == digests[5]
    assert digests[3] == digests[4]
    assert len(set(digests)) == 4
