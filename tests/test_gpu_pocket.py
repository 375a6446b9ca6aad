"""What trains the embedded model faster on a GPU computes the same as what it stands for."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.gpu


def pictures(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(*shape, device="cuda", generator=generator)
    return (3 * values + 1).to(dtype).to(memory_format=torch.channels_last)


def outcome(module: nn.Module, x: Tensor, upstream: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    y = module(x)
    parameters = list(module.parameters())
    return [y, *torch.autograd.grad(y, [x, *parameters], upstream.to(y.dtype))]


def error(ours: Tensor, exact: Tensor) -> float:
    ours, exact = ours.detach().double(), exact.detach().double()
    return float((ours - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 32, 64, 64), (2, 192, 8, 12), (1, 96, 5, 7), (2, 64, 3, 1)])
def test_the_group_norm_of_the_training_is_torchs(
    shape: tuple[int, ...], dtype: torch.dtype, scripts: SimpleNamespace
) -> None:
    exact = nn.GroupNorm(32 if shape[1] % 32 == 0 else 16, shape[1], eps=1e-5).cuda().double()
    for parameter in exact.parameters():
        nn.init.normal_(parameter)
    module = copy.deepcopy(exact).to(dtype)
    exact.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    scripts.channels_last.exchange(module)
    assert type(module) is scripts.channels_last.GroupNorm
    x, upstream = (pictures(*shape, dtype=dtype, seed=seed) for seed in (1, 2))

    ours = outcome(module, x, upstream)
    theirs = outcome(exact, x.double(), upstream)

    bound = 1e-5 if dtype == torch.float32 else 1e-2
    for one, other in zip(ours, theirs, strict=True):
        assert error(one, other) < bound
    assert ours[0].is_contiguous(memory_format=torch.channels_last)


def test_an_unet_with_exchanged_modules_computes_the_same(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    unet = scripts.networks.new_parts().unet.cuda().to(memory_format=torch.channels_last)
    exchanged = copy.deepcopy(unet)
    scripts.channels_last.exchange(exchanged)
    x = pictures(2, 4, 32, 40)
    told = {
        "encoder_hidden_states": pictures(2, 77, 224, 1)[..., 0].contiguous(),
        "added_cond_kwargs": {
            "text_embeds": torch.ones(2, 128, device="cuda"),
            "time_ids": torch.full((2, 6), 256.0, device="cuda"),
        },
    }
    results = []
    for network in (exchanged, unet):
        network.zero_grad()
        y = network(x, 500, **told).sample
        y.square().mean().backward()
        results.append([y, *(p.grad for p in network.parameters() if p.grad is not None)])

    assert len(results[0]) == len(results[1]) > 100
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm() + 1e-7
