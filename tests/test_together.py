"""Pictures side by side have the bits that each has alone, whatever is made of the batch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers import ControlNetModel
from drawings import write_controlnet
from test_diffusion_denoiser import SIZE, lane, noise

from comicgen.diffusion import together
from comicgen.diffusion.conditioning import stack
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.models import Components
from comicgen.diffusion.together import Together, Verdicts


def across(x: torch.Tensor) -> torch.Tensor:
    """Every row depends on all others."""
    return torch.softmax(x, 0)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    by_row: Mapping[Any, int] = {torch.softmax: 1, F.linear: 1}
    monkeypatch.setattr(together, "_BY_ROW", by_row)


@pytest.mark.parametrize("pictures", [2, 3])
@pytest.mark.parametrize("rows", [1, 2])
def test_an_operation_that_sees_the_batch_is_done_picture_by_picture(
    rows: int, pictures: int, watched: None
) -> None:
    x, verdicts = noise(pictures * rows, 5), Verdicts()
    with Together(pictures, verdicts):
        found = across(x)

    assert list(verdicts.found.values()) == [1]
    assert torch.equal(found, torch.cat([across(own) for own in x.split(rows)]))


def test_halves_of_a_batch_are_done_at_once_where_they_have_the_bits_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []

    def sees_more_than_two(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x * (1 + (len(x) > 2))

    monkeypatch.setattr(together, "_BY_ROW", {sees_more_than_two: 1})
    x = noise(8, 5)
    operation = together._Operation(sees_more_than_two, [x], [], {}, 8)
    at_once = operation.most_at_once()
    sizes.clear()

    assert at_once == 2
    assert torch.equal(operation.done(at_once), x)
    assert sizes == [2] * 4


def test_what_has_other_bits_even_one_by_one_is_done_in_the_plainest_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a convolution would be, were it not what `conv2d` calls."""
    done = together._Operation.done

    def other(self: Any, at_once: int) -> torch.Tensor:
        return done(self, at_once) + (at_once > 0)

    monkeypatch.setattr(together._Operation, "done", other)

    assert together._Operation(torch.relu, [noise(3, 5)], [], {}, 3).most_at_once() == 0


def test_one_that_does_not_is_done_at_once(watched: None) -> None:
    x, verdicts = noise(4, 5), Verdicts()
    with Together(4, verdicts):
        found = torch.softmax(x, 1)

    assert list(verdicts.found.values()) == [4]
    assert torch.equal(found, torch.softmax(x, 1))


def test_numbers_that_look_alike_do_not_deceive(watched: None) -> None:
    """It is tried on random numbers: rows of zeros would agree in any company."""
    with Together(2, verdicts := Verdicts()):
        across(torch.zeros(2, 5))

    assert list(verdicts.found.values()) == [1]


def test_what_was_tried_is_not_tried_again(watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = Verdicts()
    with Together(2, verdicts):
        across(noise(2, 5))
    monkeypatch.setattr(together, "_Operation", Tried)
    with Together(2, verdicts):
        across(noise(2, 5))
        with pytest.raises(AssertionError, match="tried again"):
            across(noise(2, 6))


@pytest.mark.parametrize(
    "other",
    [
        lambda x, w: F.linear(x.double(), w.double()),
        lambda x, w: F.linear(x[:, :4], w[:, :4].contiguous()),
        lambda x, w: F.linear(x, w[:3]),
        lambda x, w: F.linear(x, w, torch.zeros(6)),
        lambda x, w: F.linear(x.T.contiguous().T, w),
        lambda x, w: torch.softmax(x, 1),
    ],
    ids=["dtype", "width", "weight", "bias", "strides", "function"],
)
def test_every_shape_and_operation_is_tried_by_itself(other: Any, watched: None) -> None:
    x, weight, verdicts = noise(4, 8), noise(6, 8), Verdicts()
    with Together(2, verdicts):
        F.linear(x, weight)
        assert len(verdicts.found) == 1
        other(x, weight)
    assert len(verdicts.found) == 2
    with Together(4, verdicts):
        F.linear(x, weight)
    assert len(verdicts.found) == 3


def test_the_same_is_tried_the_same_way_in_every_run(watched: None) -> None:
    """Whatever was drawn from torch's own generator before."""
    seen = []

    def watch(operation: together._Operation, at_once: int) -> bool:
        seen.append(operation._like(torch.Generator().manual_seed(0)).rows[0])
        return True

    x, weight = noise(4, 8), noise(6, 8)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with pytest.MonkeyPatch.context() as patch, Together(2, Verdicts()):
            patch.setattr(together._Operation, "agrees", watch)
            F.linear(x, weight)

    assert torch.equal(*seen)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [320, 1280])
def test_a_sum_that_is_split_for_a_batch_is_noticed_after_rounding(
    width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few results, as an embedded timestep has; a zero weight of the layer itself hides none."""
    usual = F.linear

    def split(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide, weights = x.float(), weight.float()
        if len(x) == 2:
            return usual(wide, weights).to(x.dtype)
        half = x.shape[-1] // 3
        parts = usual(wide[..., :half], weights[..., :half])
        return (parts + usual(wide[..., half:], weights[..., half:])).to(x.dtype)

    monkeypatch.setattr(together, "_CHANNELS", {split: (-1, 1)})
    x, weight = torch.zeros(4, 1280, dtype=dtype), torch.zeros(width, 1280, dtype=dtype)

    assert not together._Operation(split, [x], [weight], {}, 2).agrees(2)


class Tried(together._Operation):
    def agrees(self, at_once: int) -> bool:
        raise AssertionError("tried again")


def test_where_there_is_no_room_to_try_the_bits_are_kept(
    watched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, at_once: int) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(together._Operation, "agrees", full)
    x, verdicts = noise(2, 5), Verdicts()
    with Together(2, verdicts):
        found = across(x)

    assert verdicts.found == {}
    assert torch.equal(found, torch.cat([across(own) for own in x.split(1)]))


def test_within_a_capture_nothing_is_tried_and_the_bits_are_kept(
    watched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing waits for the device, which a capture cannot."""
    monkeypatch.setattr(together, "_is_capturing", lambda device: True)
    x, verdicts = noise(2, 5), Verdicts()
    with Together(2, verdicts):
        found = across(x)

    assert verdicts.found == {}
    assert torch.equal(found, torch.cat([across(own) for own in x.split(1)]))


def test_weights_are_whole_for_every_picture(watched: None) -> None:
    x, weight, bias = noise(4, 3, 5), noise(7, 5), noise(7)
    with Together(2, Verdicts()):
        found = F.linear(x, weight, bias)

    alone = [F.linear(own.clone(), weight, bias) for own in x.split(2)]  # where one would lie
    assert torch.equal(found, torch.cat(alone))


def test_a_picture_alone_asks_nothing(watched: None) -> None:
    with Together(1, verdicts := Verdicts()):
        across(noise(2, 5))

    assert verdicts.found == {}


@torch.inference_mode()
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("controlled", [False, True])
def test_a_batch_predicts_what_each_picture_predicts_alone(
    controlled: bool, guided: bool, pocket: Components, tmp_path: Any
) -> None:
    """Also on a CPU, whose kernels differ with the batch too."""
    lanes = [lane(pocket, seed) for seed in range(3)]
    controlnet = None
    if controlled:
        written = write_controlnet(tmp_path, pocket)
        controlnet = ControlNetModel.from_pretrained(written.folder).eval()
    else:
        lanes = [replace(each, image=None) for each in lanes]
    denoiser = Denoiser(pocket.unet, controlnet)
    latents, timestep = noise(3, 4, 12, 16), torch.tensor([900.0, 500.0, 100.0])

    def predicted(own: slice) -> torch.Tensor:
        prepared = denoiser.prepare(stack(lanes[own], SIZE, guided))
        return denoiser.predict(latents[own], timestep[own], prepared)

    whole = predicted(slice(None))
    for place in range(3):
        assert torch.equal(whole[place], predicted(slice(place, place + 1))[0])
    assert torch.equal(predicted(slice(1, 3)), whole[1:])


@pytest.mark.parametrize("sees", [False, True])
@pytest.mark.parametrize("width", [16, 5])
def test_a_product_that_adds_itself_does_so_once_and_in_place(
    width: int, sees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or picture by picture, of which some do not lie where one alone would."""
    x, y, weight = noise(6, width), noise(6, 7), noise(width, 7)
    expected = [x[i : i + 2].clone().addmm_(y[i : i + 2], weight.t()) for i in (0, 2, 4)]
    monkeypatch.setattr(
        together._Operation, "agrees", lambda self, at_once: not (sees and at_once > 1)
    )
    with Together(3, verdicts := Verdicts()):
        found = x.addmm_(y, weight.t())

    assert found is x
    torch.testing.assert_close(x, torch.cat(expected))
    assert [*verdicts.found.values()] == [1 if sees else 3]


def test_a_product_that_adds_itself_is_tried_on_other_numbers() -> None:
    x, y, weight = noise(4, 16), noise(4, 7), noise(16, 7)
    given = x.clone(), y.clone(), weight.clone()
    with Together(2, verdicts := Verdicts()):
        x.addmm_(y, weight.t())

    assert len(verdicts.found) == 1
    torch.testing.assert_close(x, given[0].addmm_(given[1], given[2].t()))
    assert torch.equal(y, given[1])
    assert torch.equal(weight, given[2])
