"""Where an engine works: its device and stream, and how errors there become ours."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from comicgen.diffusion.models import REFUSALS
from comicgen.diffusion.precision import exact_convolutions
from comicgen.errors import CandidateError, DeviceLost, first_line


class Workplace:
    """A device and, on a GPU, a stream of its own on it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = _stream(device)

    @contextmanager
    def working(self) -> Iterator[None]:
        """On this device and stream, without gradients; errors become the candidate's.

        Raises:
            CandidateError: what was done inside failed.
            DeviceLost: the device fails at everything.
        """
        try:
            with ExitStack() as place:
                place.enter_context(torch.inference_mode())
                if self.stream is not None:
                    place.enter_context(torch.cuda.device(self.device))
                    place.enter_context(exact_convolutions())
                    place.enter_context(torch.cuda.stream(self.stream))
                yield
        except torch.OutOfMemoryError as error:
            raise CandidateError(
                f"out of memory on {self.device}; use a smaller size, or a smaller --batch"
            ) from error
        except MemoryError as error:
            raise CandidateError(
                "this machine's memory is full; close what else uses it"
            ) from error
        except REFUSALS as error:
            raise self._judge(error) from error

    def _judge(self, error: Exception) -> CandidateError | DeviceLost:
        """Whether one batch failed, or the device for good: then it fails at everything."""
        what = first_line(error)
        if self.stream is not None:
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError:
                return DeviceLost(
                    f"{self.device} does not answer any more ({what}); give the same command "
                    "again, and restart the machine if it stays so"
                )
        return CandidateError(what)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
