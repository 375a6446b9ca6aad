"""Whether a captured graph does what the function does that it was captured from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from comicgen.diffusion.graph import Function, Graph
from comicgen.diffusion.prepared import Named


class ReplayError(RuntimeError):
    """A captured graph is not the function that it was captured from."""


def check(graph: Graph, function: Function, inputs: Named, others: Named, expected: Tensor) -> None:
    """Replay on inputs that the capture did not see, then with each input changed alone.

    Where a change shows nothing, as that of the guidance of an empty lane, the invented inputs
    are changed instead; and where that shows nothing either, the function itself is asked.

    Args:
        graph: captured on `others`.
        function: what was captured.
        inputs: (k * B, ...) tensors by name.
        others: the same shapes with other contents, invented, in which everything counts.
        expected: (B, ...), what the function gives for `inputs`.

    Raises:
        ReplayError: the results differ, or an input has no effect that has one on the function.
    """
    compare(graph.call(inputs), expected)
    lanes = len(expected)
    unheard = _unheard(graph.call, _Mixing(inputs, others, lanes), list(inputs), expected)
    if not unheard:
        return
    mixing = _Mixing(others, inputs, lanes)
    unheard = _unheard(graph.call, mixing, unheard, graph.call(others))
    if not unheard:
        return
    if wrong := set(unheard) - set(_unheard(function, mixing, unheard, function(others))):
        raise ReplayError(f"the graph does not read {', '.join(sorted(wrong))}")


@dataclass(frozen=True, slots=True)
class _Mixing:
    """Inputs into which single lanes of others are mixed."""

    inputs: Named
    others: Named
    lanes: int

    def changed(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The inputs, where lane i has the other's tensor of the i-th name."""
        mixed = dict(self.inputs)
        for lane, name in enumerate(names):
            mixed[name] = self.inputs[name].clone()
            rows = len(mixed[name]) // self.lanes
            own = slice(lane * rows, (lane + 1) * rows)
            mixed[name][own] = self.others[name][own]
        return mixed


def _unheard(function: Function, mixing: _Mixing, names: Sequence[str], usual: Tensor) -> list[str]:
    """The inputs that alone change nothing in `usual`, what the function gives without a change.

    Lanes do not see each other, so that one call changes another input in each lane.
    """
    found: list[str] = []
    for some in (names[at : at + mixing.lanes] for at in range(0, len(names), mixing.lanes)):
        result = function(mixing.changed(some))
        found += [n for lane, n in enumerate(some) if same_bits(result[lane], usual[lane])]
    return found


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
