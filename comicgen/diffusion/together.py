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

What else a network does is done number by number, or row by row in an order of its own.
"""


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
        return torch.cat([self.function(*part, *self.others, **self.kwargs) for part in parts])

    def agrees(self) -> bool:
        """Whether both ways give the same bits for random numbers."""
        rows = [torch.randn_like(each) for each in self.rows]
        like = _Operation(self.function, rows, self.others, self.kwargs, self.pictures)
        return torch.equal(like.whole(), like.parted())


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    return tuple(value) if isinstance(value, list) else value
