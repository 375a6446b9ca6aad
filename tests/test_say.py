"""What is said to programs arrives in whole lines, whoever says it."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import pytest

from comicgen.cli.say import answer, milliseconds, size


def test_lines_of_several_threads_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(StringIO):
        """Lets other threads run in the middle of every line."""

        def write(self, text: str) -> int:
            meeting = threading.Barrier(2)
            threading.Thread(target=meeting.wait).start()
            written = super().write(text)
            meeting.wait()
            return written

    out = Slow()
    monkeypatch.setattr(sys, "stdout", out)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: answer({"number": number}), range(100)))

    told = [json.loads(line)["number"] for line in out.getvalue().splitlines()]
    assert sorted(told) == list(range(100))


def test_short_times_and_bytes_are_said_in_three_digits_or_so() -> None:
    assert [milliseconds(each) for each in (0.02822, 0.2104, None)] == ["28.2 ms", "210 ms", "-"]
    assert [size(each) for each in (1_240_000, 99_000_000, 9_870_000_000)] == [
        "1.2 MB",
        "99.0 MB",
        "9.9 GB",
    ]
