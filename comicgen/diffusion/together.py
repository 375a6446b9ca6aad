"""Pictures side by side with the bits that each has alone.

A library chooses kernels by the shape of the whole batch, and another kernel sums in another
order. Within `Together` each watched operation is compared, when it is first met with a shape,
with the same operation picture by picture: for the whole batch, then for halves of it and so on,
until all bits agree. So many pictures are done at once from then on, and each has the bits that
it would have alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor
from torch.overrides import TorchFunctionMode

_BY_ROW: Mapping[Any, int] = {
    F.conv2d: 1,
    F.linear: 1,
    F.scaled_dot_product_attention: 3,
    Tensor.addmm_: 2,
}
"""The watched operations, and how many of their first arguments have a row for each of the batch's.

What else a network does on a GPU is done number by number, or row by row in an order of its own.
"""

_CHANNELS: Mapping[Any, tuple[int, int]] = {
    F.conv2d: (1, 1),
    F.linear: (-1, 1),
    Tensor.addmm_: (1, 0),
}
"""Over which dimensions of the last of these arguments and of the weights products are added up."""

_IN_PLACE = (Tensor.addmm_,)
"""Those whose result lies in the first argument."""

_RESULTS, _TRIALS = 2**20, 64


class Verdicts:
    """How many pictures at once an operation is done for; 0 is one by one, in the plainest way."""

    def __init__(self) -> None:
        self.found: dict[tuple[Any, ...], int] = {}


class Together(TorchFunctionMode):
    """While it lasts, operations on `pictures` have the bits that each picture has alone.

    The rows of a batch are in the order of its pictures, equally many for each.
    """

    def __init__(self, pictures: int, verdicts: Verdicts) -> None:
        super().__init__()
        self._pictures = pictures
        self._verdicts = verdicts

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        by_row = _BY_ROW.get(function)
        if by_row is None or self._pictures == 1:
            return function(*args, **kwargs)
        assert len(args) >= by_row
        assert not any(isinstance(each, Tensor) for each in kwargs.values())
        operation = _Operation(function, args[:by_row], args[by_row:], kwargs, self._pictures)
        key = operation.signature
        if key not in self._verdicts.found and not _is_capturing(operation.rows[0].device):
            # Where there is no room to try, pictures are done one by one, and the next call tries.
            with suppress(torch.OutOfMemoryError):
                self._verdicts.found[key] = operation.most_at_once()
        return operation.done(self._verdicts.found.get(key, 0))


class _Operation:
    def __init__(
        self,
        function: Callable[..., Tensor],
        rows: Sequence[Tensor],
        others: Sequence[Any],
        kwargs: Mapping[str, Any],
        pictures: int,
    ) -> None:
        self.function, self.rows, self.others, self.kwargs = function, rows, others, kwargs
        self.pictures = pictures

    @property
    def signature(self) -> tuple[Any, ...]:
        given = (*self.rows, *self.others, *sorted(self.kwargs.items()))
        return self.function, self.pictures, tuple(map(_shape, given))

    def done(self, at_once: int) -> Tensor:
        """The result, so many pictures at once; 0 is one by one, and what a picture alone has."""
        if at_once == self.pictures:
            return self.function(*self.rows, *self.others, **self.kwargs)
        parts = self.pictures // max(at_once, 1)
        if at_once and self.function is F.conv2d and self.rows[0].is_cuda:
            convolved = _convolved(self.rows[0], parts, *self.others, **self.kwargs)
            if convolved is not None:
                return convolved
        rows = zip(*(each.chunk(parts) for each in self.rows), strict=True)
        made = [self.function(*map(_aligned, own), *self.others, **self.kwargs) for own in rows]
        if self.function not in _IN_PLACE:
            return torch.cat(made)
        for part, own in zip(self.rows[0].chunk(parts), made, strict=True):
            if part.data_ptr() != own.data_ptr():  # it was not aligned
                part.copy_(own)
        return self.rows[0]

    def most_at_once(self) -> int:
        """How many pictures may be done at once: all, or half of them, and so on."""
        at_once = self.pictures
        while at_once and not self.agrees(at_once):
            at_once = at_once // 2 if at_once % 2 == 0 else int(at_once > 1)
        return at_once

    def agrees(self, at_once: int) -> bool:
        """Whether pictures have the bits that each has alone, in numbers in which sums show.

        Some 10^6 results are compared, from the same seed always.
        """
        chance = torch.Generator(self.rows[0].device).manual_seed(0)
        left = _RESULTS
        for _ in range(_TRIALS):
            like = self._like(chance)
            again = like.copied()
            found = like.done(at_once)
            if not torch.equal(found, again.done(0)):
                return False
            left -= found.numel()
            if left <= 0:
                break
        return True

    def copied(self) -> "_Operation":
        """The same, that changes nothing of this one."""
        if self.function not in _IN_PLACE:
            return self
        first, *rows = self.rows
        return _Operation(
            self.function, [first.clone(), *rows], self.others, self.kwargs, self.pictures
        )

    def _like(self, chance: torch.Generator) -> "_Operation":
        """The same operation on random numbers.

        In a product the second half of what is added up takes back all but a 256th of the first,
        so that what is lost on the way is not lost again when the result is rounded.
        """
        rows, others = (
            [_random(each, chance) if isinstance(each, Tensor) else each for each in given]
            for given in (self.rows, self.others)
        )
        if self.function in _CHANNELS:
            channels, inputs = _CHANNELS[self.function]
            x, weight = rows[-1].movedim(channels, -1), others[0].movedim(inputs, -1)
            half = x.shape[-1] // 2
            x[..., half : 2 * half] = x[..., :half]
            weight[..., half : 2 * half] = weight[..., half : 2 * half] / 256 - weight[..., :half]
        if self.function in _IN_PLACE:
            rows[0] /= 256
        return _Operation(self.function, rows, others, self.kwargs, self.pictures)


def _convolved(
    x: Tensor,
    parts: int,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """Each part of x convolved into its place in the result, where that takes no copy.

    It is what `conv2d` calls for what lies in channels_last memory; None for all else.
    """
    last, bytes_each = torch.channels_last, x.dtype.itemsize
    laid = all(each.is_contiguous(memory_format=last) for each in (x, weight))
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) * bytes_each % 16 == 0
    if bias is not None or isinstance(padding, str) or bytes_each != 2 or not (laid and aligned):
        return None
    how = [_pair(padding), _pair(stride), _pair(dilation)]
    like = F.conv2d(x.to("meta"), weight.to("meta"), None, how[1], how[0], how[2], groups)
    result = torch.empty_like(like, device=x.device, memory_format=last)
    flags = torch.backends.cudnn
    settings = *how, groups, flags.benchmark, flags.deterministic, flags.allow_tf32
    for part, own in zip(x.chunk(parts), result.chunk(parts), strict=True):
        torch.ops.aten.cudnn_convolution.out(part, weight, *settings, out=own)
    return result


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _random(tensor: Tensor, chance: torch.Generator) -> Tensor:
    """Normal numbers in the memory layout of another tensor."""
    return torch.empty_like(tensor).normal_(generator=chance)


def _aligned(part: Tensor) -> Tensor:
    """As a picture alone would lie, by which a library may choose kernels too."""
    return part.clone() if part.data_ptr() % 16 else part


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(value) if isinstance(value, list) else value
