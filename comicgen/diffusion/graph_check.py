"""Whether a captured graph does what the function does that it was captured from."""

from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.graph import Function, Graph
from comicgen.diffusion.prepared import Named


class ReplayError(RuntimeError):
    """A captured graph is not the function that it was captured from."""


def check(graph: Graph, function: Function, inputs: Named, others: Named, expected: Tensor) -> None:
    """Replay on inputs that the capture did not see, then with each input changed alone.

    Lanes do not see each other, so that one replay changes another input in each lane.

    Args:
        graph: captured on `others`.
        function: what was captured.
        inputs: (k * B, ...) tensors by name.
        others: the same shapes with other contents.
        expected: (B, ...), what the function gives for `inputs`.

    Raises:
        ReplayError: the results differ, or an input has no effect that has one on the function.
    """
    graph.load(inputs)
    replayed = graph.replay()
    compare(replayed, expected)
    lanes = len(expected)
    for names in (list(inputs)[at : at + lanes] for at in range(0, len(inputs), lanes)):
        mixed = dict(inputs)
        for lane, name in enumerate(names):
            mixed[name] = _with_lane(inputs[name], others[name], lane, lanes)
        graph.load(mixed)
        deaf = _unchanged(graph.replay(), replayed, names)
        if deaf and (wrong := deaf - _unchanged(function(mixed), expected, names)):
            raise ReplayError(f"the graph does not read {', '.join(sorted(wrong))}")


def compare(replayed: Tensor, expected: Tensor) -> None:
    """Hold a replay against the function's own result.

    A picture may be drawn partly by one and partly by the other, depending on when the graph was
    captured; its bits may not.

    Raises:
        ReplayError: they have not the same bits.
    """
    if not same_bits(replayed, expected):
        off = (replayed - expected).abs().max().item()
        raise ReplayError(f"its result is off by up to {off:.1e}")


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two float32 tensors are equal, with NaN equal to itself."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def _with_lane(value: Tensor, other: Tensor, lane: int, lanes: int) -> Tensor:
    """The value, with the rows of one lane taken from the other."""
    changed = value.clone()
    rows: Any = slice(lane, None, lanes)
    changed[rows] = other[rows]
    return changed


def _unchanged(one: Tensor, other: Tensor, names: list[str]) -> set[str]:
    """The names whose lanes have the same bits in both."""
    return {name for lane, name in enumerate(names) if same_bits(one[lane], other[lane])}
