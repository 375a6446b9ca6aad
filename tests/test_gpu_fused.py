"""On a GPU fused networks are as near to float32 as diffusers' own, and any company keeps bits."""

import copy
import gc
from collections.abc import Iterator
from typing import Any

import figures
import full_size
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from bench_parts.replays import Desk
from torch import Tensor

from comicgen.diffusion import fused_operations, together
from comicgen.diffusion.fused import fuse, fuse_decoder, text_keys
from comicgen.diffusion.fused_check import begin, distance, wrong_operations
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.lean import lean
from comicgen.diffusion.precision import exact_convolutions
from comicgen.sizes import Size

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
SQUARE = Size(1024, 1024)
SIZES = (SQUARE, Size(832, 1216), Size(1344, 768), Size(512, 384))


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Without gradients; convolutions in float32 are not rounded to TF32."""
    gc.collect()
    with torch.inference_mode(), exact_convolutions():
        yield


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_kernel_is_its_reference(dtype: torch.dtype) -> None:
    assert list(wrong_operations(GPU, dtype)) == []


def test_kernels_are_used_wherever_torch_rounds_convolutions_by_itself() -> None:
    """To TF32, as it does in a process of its own until it is told otherwise."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert begin.__wrapped__(GPU, torch.float16).result() == ""


SHAPES = (
    (320, 128, 128),
    (640, 64, 64),
    (960, 64, 64),
    (1280, 32, 32),
    (2560, 26, 38),
    (1920, 52, 76),
    (128, 256, 200),
    (512, 64, 64),
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pictures_of_sdxls_shapes_are_normalised(shape: tuple[int, int, int]) -> None:
    """Also where the mean is far from zero, which sums of squares would not survive."""
    x = (torch.randn(3, *shape, device=GPU) + 30).half()
    x = x.to(memory_format=torch.channels_last)
    weight, bias, before = (torch.randn(n, device=GPU).half() for n in (shape[0],) * 3)
    arguments = (x, 32, weight, bias, 1e-5, True, before)
    found = fused_operations.group_norm(*arguments)
    wide = [each.double() if isinstance(each, Tensor) else each for each in arguments]
    reference: Any = fused_operations.group_norm

    assert distance(found, reference.__wrapped__(*wide)) < 5e-4
    for row in range(3):
        alone = fused_operations.group_norm(x[row : row + 1], *arguments[1:])
        assert torch.equal(found[row : row + 1], alone)


@pytest.mark.parametrize("width", [640, 1280, 2560])
def test_a_row_of_tokens_has_the_same_bits_alone(width: int) -> None:
    chance = torch.randn
    x, before = chance(5, 100, width, device=GPU).half(), chance(width, device=GPU)
    weight, bias = (chance(width, device=GPU).half() for _ in range(2))
    normed = fused_operations.layer_norm(x, before, weight, bias, 1e-5)
    gated = fused_operations.geglu(x)

    for row in range(5):
        own = slice(row, row + 1)
        alone = fused_operations.layer_norm(x[own].clone(), before, weight, bias, 1e-5)
        assert torch.equal(normed[own], alone)
        assert torch.equal(gated[own], fused_operations.geglu(x[own].clone()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_into_its_place_has_the_bits_of_one_alone(
    stride: int, shape: tuple[int, int, int]
) -> None:
    x = torch.randn(8, *shape, device=GPU).half().to(memory_format=torch.channels_last)
    weight = torch.randn(320, shape[0], 3, 3, device=GPU).half() / 30
    weight = weight.to(memory_format=torch.channels_last)
    for own in (x, x[:, :, 1:]):  # which is not laid out as a picture alone, and done otherwise
        alone = [F.conv2d(each, weight, None, stride, 1) for each in own.split(2)]
        operation = together._Operation(F.conv2d, [own], [weight, None, stride, 1], {}, 4)
        assert torch.equal(operation.done(1), torch.cat(alone))
        assert operation.most_at_once() > 0


def test_all_that_a_network_draws_with_is_compiled_when_kernels_are_tried() -> None:
    """So that a capture or a first picture does not wait for a compiler."""
    from triton import JITFunction

    from comicgen.diffusion import fused_kernels

    def compiled() -> int:
        kernels = [each for each in vars(fused_kernels).values() if isinstance(each, JITFunction)]
        assert kernels
        return sum(len(cache[0]) for each in kernels for cache in each.device_caches.values())

    for each in vars(fused_kernels).values():
        if isinstance(each, JITFunction):
            each.device_caches.clear()
    assert begin.__wrapped__(GPU, torch.float16).result() == ""
    tried = compiled()
    unet = full_size.unet(GPU)
    controlnet, vae = full_size.controlnet(unet).half(), full_size.vae(GPU).half()
    unet.half()
    for network in (unet, controlnet):
        fuse(network)
    fuse_decoder(vae)
    desk = Desk.beside(unet, controlnet)
    with desk.working():
        for size in (SQUARE, Size(832, 1216)):
            desk.eager(desk.task(size, 2, True))
            vae.decode(torch.randn(1, 4, size.height // 8, size.width // 8, device=GPU).half())

    assert tried > 10
    assert compiled() == tried


class Networks:
    """SDXL at full size: in float32, and in 16 bits as diffusers has it, leaner, and fused."""

    def __init__(self, dtype: torch.dtype) -> None:
        unet = full_size.unet(GPU)
        self.wide = unet, full_size.controlnet(unet)
        own, fused = (self._narrow(dtype) for _ in range(2))
        self.theirs = self._narrow(dtype)
        for network in own:
            lean(network)
        for network in fused:
            fuse(network)
        self.plain, self.fused = own, fused

    def _narrow(self, dtype: torch.dtype) -> tuple[Any, Any]:
        unet, controlnet = (copy.deepcopy(network).to(dtype) for network in self.wide)
        return unet, controlnet


@pytest.fixture(scope="module")
def half() -> Networks:
    return Networks(torch.float16)


@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_is_no_further_from_float32_than_plain(
    dtype: torch.dtype, controlled: bool, half: Networks
) -> None:
    networks = half if dtype == torch.float16 else Networks(dtype)
    desk = Desk.beside(*networks.wide)
    task = desk.task(Size(832, 1216), 2, controlled)

    def predicted(pair: tuple[Any, Any]) -> Tensor:
        own = Desk.beside(*pair).task(Size(832, 1216), 2, controlled)
        prepared = _as_taken(task, own, pair)
        result: Tensor = own.network.call(prepared)
        return result

    expected = predicted(networks.wide)
    found = {
        name: distance(predicted(getattr(networks, name)), expected)
        for name in ("theirs", "plain", "fused")
    }
    figures.record(f"distance-from-float32-{dtype}-{'with' if controlled else 'no'}-control", found)

    assert found["fused"] <= 1.1 * found["plain"]
    assert found["fused"] <= 1.1 * found["theirs"]


def _as_taken(task: Task, own: Task, pair: tuple[Any, Any]) -> dict[str, Tensor]:
    """The inputs of a task in float32 as another's networks take them, from the same texts."""
    latents = torch.randn(task.latents.shape, generator=torch.Generator().manual_seed(3))
    inputs = own.inputs(latents.to(GPU), torch.full((len(latents),), 500.0, device=GPU))
    texts = torch.randn(2 * len(latents), 77, 2048, generator=torch.Generator().manual_seed(4))
    hidden = texts.to(GPU, pair[0].dtype)
    taken = {
        name: task.settings[name].to(value.dtype)
        for name, value in own.settings.items()
        if name not in ("text", "control_text")
    }
    taken["text"] = text_keys(pair[0], hidden)
    if "control_text" in own.settings:
        taken["control_text"] = text_keys(pair[1], hidden)
    return {**inputs, **taken}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("numerics", ["plain", "fused"])
def test_a_picture_has_the_same_bits_in_any_batch_lane_and_company(
    numerics: str, controlled: bool, size: Size, half: Networks
) -> None:
    """Alone; in batches of 2 to 16; in another lane among others; replayed."""
    desk = Desk.beside(*getattr(half, numerics))
    with desk.working():
        task = desk.task(size, 16, controlled)
        latents = torch.randn_like(task.latents)
        timestep = torch.linspace(1, 999, 16, device=GPU)
        inputs = task.inputs(latents, timestep)
        alone = [desk.call(_lanes(inputs, [lane], 16), controlled) for lane in range(16)]
        for lanes in ([3, 0], [5, 6, 7, 4], [*range(8, 16)], [*range(15, -1, -1)]):
            together = desk.call(_lanes(inputs, lanes, 16), controlled)
            for place, lane in enumerate(lanes):
                assert torch.equal(together[place], alone[lane][0])
        desk.cache.capture(task)
        assert desk.cache.keys == (task.key,)
        [predict] = desk.cache.begin([task])
        assert torch.equal(predict(latents, timestep), torch.cat(alone))
    desk.cache.clear()


def _lanes(inputs: dict[str, Tensor], lanes: list[int], of: int) -> dict[str, Tensor]:
    """Some lanes of a batch's inputs."""
    return {
        name: value.unflatten(0, (of, -1))[lanes].flatten(0, 1) for name, value in inputs.items()
    }


@pytest.mark.parametrize("size", SIZES[:2], ids=str)
@pytest.mark.parametrize("loud", [False, True])
def test_a_vae_in_16_bits_is_near_float32(size: Size, loud: bool) -> None:
    """Also where its numbers are larger than float16 can hold, and plain ones are lost."""
    wide = full_size.vae(GPU)
    if loud:
        _louder(wide.decoder, 2.0**14)
    latents = torch.randn(1, 4, size.height // 8, size.width // 8, device=GPU)
    expected = wide.decode(latents, return_dict=False)[0]
    plain, fused = (copy.deepcopy(wide).half() for _ in range(2))
    lean(plain)
    fuse_decoder(fused)
    found = {
        name: distance(vae.decode(latents.half(), return_dict=False)[0], expected)
        for name, vae in (("plain", plain), ("fused", fused))
    }
    largest = _largest(wide, latents)
    figures.record(f"vae-{size}-{'loud' if loud else 'quiet'}", {**found, "largest": largest})

    assert found["fused"] < 5e-3
    assert loud == (largest > 65504) == (found["plain"] != found["plain"])
    assert loud or found["fused"] <= 1.1 * found["plain"]


def _louder(decoder: Any, loudness: float) -> None:
    """Scale what each layer adds to the stream of numbers, which norms take back."""
    for name, parameter in decoder.named_parameters():
        if name.startswith("conv_in") or ".conv2." in name or ".conv1." in name:
            parameter.mul_(loudness)


def _largest(vae: Any, latents: Tensor) -> float:
    found = [0.0]

    def see(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            found[0] = max(found[0], output.abs().max().item())

    hooks = [each.register_forward_hook(see) for each in vae.decoder.modules()]
    vae.decode(latents, return_dict=False)
    for hook in hooks:
        hook.remove()
    return found[0]
