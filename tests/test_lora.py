"""A LoRA set is a pure function of the pristine weights, written into their own storage."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lora_files import lora_at
from safetensors.numpy import load_file, save_file
from torch import nn

import comicgen
from comicgen.diffusion.lora import LoraWeights, read_changes
from comicgen.errors import CandidateError
from comicgen.storyboard import Lora
from comicgen.weights import ModelFolder, read_model

POCKET = Path(comicgen.__file__).parent / "pocket" / "model"


@pytest.fixture(scope="module")
def pocket() -> ModelFolder:
    return read_model(POCKET)


def _digest(modules: dict[str, nn.Module]) -> str:
    digest = hashlib.sha256()
    for module in modules.values():
        for parameter in module.parameters():
            digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def test_a_four_by_four_layer_of_rank_two_and_alpha_one_gets_half_of_ba(
    tmp_path: Path, pocket: ModelFolder
) -> None:
    file = _tiny(tmp_path / "a.safetensors", seed=1, alpha=1.0)
    tensors = {key: torch.from_numpy(value) for key, value in load_file(file).items()}
    module = _Small()
    before = module.to_q.weight.detach().clone()

    LoraWeights({"unet": module}, _small_model(pocket)).set([lora_at(file)])

    delta = tensors["unet.to_q.lora_B.weight"] @ tensors["unet.to_q.lora_A.weight"]
    assert torch.equal(module.to_q.weight, before + 0.5 * delta)


class _Small(nn.Module):
    """One linear and one convolution layer, as a UNet would name them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator("cpu").manual_seed(0)
        self.to_q = nn.Linear(4, 4)
        self.conv = nn.Conv2d(4, 6, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.to(dtype)


def _small_model(pocket: ModelFolder) -> ModelFolder:
    layers = {name: tuple(weight.shape) for name, weight in _Small().named_parameters()}
    return replace(pocket, layers={"unet": layers})


def _tiny(
    file: Path, seed: int, alpha: float | None = None, strength: float = 1.0, nan: bool = False
) -> Path:
    random = np.random.default_rng(seed)
    shapes = {
        "unet.to_q.lora_A.weight": (2, 4),
        "unet.to_q.lora_B.weight": (4, 2),
        "unet.conv.lora_A.weight": (3, 4, 3, 3),
        "unet.conv.lora_B.weight": (6, 3, 1, 1),
    }
    tensors = {
        key: random.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()
    }
    for key in tensors:
        tensors[key] *= strength if "lora_B" in key else 1
    if alpha is not None:
        tensors["unet.to_q.alpha"] = np.array(alpha, np.float32)
    if nan:
        tensors["unet.to_q.lora_B.weight"][1, 1] = np.nan
    save_file(tensors, file)
    return file


@pytest.fixture
def small(pocket: ModelFolder) -> tuple[_Small, LoraWeights]:
    module = _Small(torch.float16)
    return module, LoraWeights({"unet": module}, _small_model(pocket))


def test_a_thousand_switches_leave_the_base_bit_equal_in_its_own_storage(
    tmp_path: Path, small: tuple[_Small, LoraWeights]
) -> None:
    module, weights = small
    first = lora_at(_tiny(tmp_path / "a.safetensors", 1), 0.7)
    second = lora_at(_tiny(tmp_path / "b.safetensors", 2), -1.3)
    base = _digest({"unet": module})
    homes = [parameter.data_ptr() for parameter in module.parameters()]
    sets: list[Sequence[Lora]] = [[first], [second], [second, first], []]

    digests = []
    for turn in range(1_000):
        weights.set(sets[turn % len(sets)])
        digests.append(_digest({"unet": module}))

    assert digests[:4] * 250 == digests
    assert len(set(digests)) == 4
    assert digests[3] == base
    assert [parameter.data_ptr() for parameter in module.parameters()] == homes


def test_order_and_company_do_not_matter_and_weights_add_up(
    tmp_path: Path, pocket: ModelFolder
) -> None:
    loras = [lora_at(_tiny(tmp_path / f"{n}.safetensors", n), 0.3 * n) for n in (1, 2, 3)]
    modules = [_Small() for _ in range(2)]
    base = _Small()

    for module, order in zip(modules, (loras, loras[::-1]), strict=True):
        LoraWeights({"unet": module}, _small_model(pocket)).set(order)

    assert torch.equal(modules[0].conv.weight, modules[1].conv.weight)
    total = sum(
        lora.weight
        * (
            tensors["unet.conv.lora_B.weight"].reshape(6, 3)
            @ tensors["unet.conv.lora_A.weight"].reshape(3, -1)
        )
        for lora in loras
        for tensors in [load_file(lora.file)]
    )
    change = (modules[0].conv.weight - base.conv.weight).detach().reshape(6, -1)
    np.testing.assert_allclose(change.numpy(), total, atol=1e-5)


def test_the_same_set_again_does_not_touch_the_files(
    tmp_path: Path, small: tuple[_Small, LoraWeights]
) -> None:
    module, weights = small
    loras = [lora_at(_tiny(tmp_path / f"{n}.safetensors", n)) for n in (1, 2)]
    weights.set(loras)
    changed = _digest({"unet": module})
    for lora in loras:
        lora.file.unlink()

    weights.set(loras[::-1])

    assert _digest({"unet": module}) == changed
    assert set(weights.active) == set(loras)


def test_a_file_that_was_read_before_is_not_read_again(
    tmp_path: Path, pocket: ModelFolder, small: tuple[_Small, LoraWeights]
) -> None:
    module, weights = small
    one, two = (lora_at(_tiny(tmp_path / f"{n}.safetensors", n), 0.5) for n in (1, 2))
    weights.set([one, two])
    changed = _digest({"unet": module})
    weights.set([])
    read = [read_changes(one, _small_model(pocket))]
    one.file.unlink()

    weights.set([two, replace(one, weight=0.5)], read)

    assert _digest({"unet": module}) == changed


def test_weight_zero_and_zero_tensors_change_nothing(
    tmp_path: Path, small: tuple[_Small, LoraWeights]
) -> None:
    module, weights = small
    base = _digest({"unet": module})
    zero = lora_at(_tiny(tmp_path / "zero.safetensors", 1, strength=0.0))
    off = lora_at(_tiny(tmp_path / "off.safetensors", 2), 0.0)

    weights.set([zero, off])

    assert _digest({"unet": module}) == base
    assert len(weights.active) == 2


def _truncate(file: Path) -> Path:
    file.write_bytes(file.read_bytes()[:-1])
    return file


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: _tiny(file, 1, nan=True), r"unet.to_q.lora_B.weight holds numbers"),
        (lambda file: _tiny(file, 1, alpha=float("inf")), r"unet.to_q.alpha holds numbers"),
        (lambda file: _tiny(file, 1, strength=1e6), r"lora_B.weight carries .* torch.float16"),
        (lambda file: _truncate(_tiny(file, 1)), "cut short"),
        (lambda file: (_tiny(file, 1).write_bytes(b""), file)[1], "no safetensors file"),
    ],
)
def test_a_bad_file_is_named_and_leaves_pristine_weights(
    tmp_path: Path,
    small: tuple[_Small, LoraWeights],
    spoil: Callable[[Path], Path],
    why: str,
) -> None:
    module, weights = small
    base = _digest({"unet": module})
    good = lora_at(_tiny(tmp_path / "good.safetensors", 5))
    bad = lora_at(spoil(tmp_path / "bad.safetensors"))
    weights.set([good])

    for _ in range(2):
        with pytest.raises(CandidateError, match=rf"bad\.safetensors.*{why}"):
            weights.set([good, bad])
        assert _digest({"unet": module}) == base
        assert weights.active == ()

    weights.set([good])
    assert _digest({"unet": module}) != base


def test_a_missing_file_fails_the_candidate_only(
    tmp_path: Path, small: tuple[_Small, LoraWeights]
) -> None:
    _, weights = small

    with pytest.raises(CandidateError, match=r"gone\.safetensors: cannot be read"):
        weights.set([Lora("gone", tmp_path / "gone.safetensors", "0", 1.0)])


def test_half_precision_weights_are_rounded_once(tmp_path: Path, pocket: ModelFolder) -> None:
    lora = lora_at(_tiny(tmp_path / "a.safetensors", 1), 0.37)
    half, single = _Small(torch.bfloat16), _Small()
    with torch.no_grad():
        single.load_state_dict(half.state_dict())

    for module in (half, single):
        LoraWeights({"unet": module}, _small_model(pocket)).set([lora])

    for name, parameter in half.named_parameters():
        assert torch.equal(parameter, single.get_parameter(name).bfloat16())
