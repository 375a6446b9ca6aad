"""Pictures side by side with the bits that each has alone.

A library chooses kernels by the shape of the whole batch, and another kernel sums in another
order. Within `Together` each watched operation is compared, when it is first met with a shape,
with the same operation picture by picture. Where all bits agree it is called for the whole batch;
where not, picture by picture. Either way a picture has the bits that it would have alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor
from torch.overrides import TorchFunctionMode

_BY_ROW: Mapping[Any, int] = {F.conv2d: 1, F.linear: 1, F.scaled_dot_product_attention: 3}
"""The watched operations, and how many of their first arguments have a row for each of the batch's.

What else a network does on a GPU is done number by number, or row by row in an order of its own.
"""

_CHANNELS: Mapping[Any, int] = {F.conv2d: 1, F.linear: -1}
"""Over which dimension of the first argument products are added up; of the weights it is 1."""

_RESULTS, _TRIALS = 2**20, 64


class Verdicts:
    """Which operations may be called for a whole batch; `True` where bits agree."""

    def __init__(self) -> None:
        self.found: dict[tuple[Any, ...], bool] = {}


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
            # Where there is no room to try, this call is parted, and the next one tries.
            with suppress(torch.OutOfMemoryError):
                self._verdicts.found[key] = operation.agrees()
        together = self._verdicts.found.get(key, False)
        return operation.whole() if together else operation.parted()


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

    def whole(self) -> Tensor:
        return self.function(*self.rows, *self.others, **self.kwargs)

    def parted(self) -> Tensor:
        parts = zip(*(each.chunk(self.pictures) for each in self.rows), strict=True)
        return torch.cat(
            [self.function(*map(_aligned, part), *self.others, **self.kwargs) for part in parts]
        )

    def agrees(self) -> bool:
        """Whether both ways give the same bits, for numbers in which the order of sums shows.

        Some 10^6 results are compared, from the same seed always.
        """
        chance = torch.Generator(self.rows[0].device).manual_seed(0)
        left = _RESULTS
        for _ in range(_TRIALS):
            like = self._like(chance)
            whole = like.whole()
            if not torch.equal(whole, like.parted()):
                return False
            left -= whole.numel()
            if left <= 0:
                break
        return True

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
            x, weight = rows[0].movedim(_CHANNELS[self.function], -1), others[0].movedim(1, -1)
            half = x.shape[-1] // 2
            x[..., half : 2 * half] = x[..., :half]
            weight[..., half : 2 * half] = weight[..., half : 2 * half] / 256 - weight[..., :half]
        return _Operation(self.function, rows, others, self.kwargs, self.pictures)


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
