"""What is said to programs arrives in whole lines, whoever says it."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import pytest

from comicgen.cli.say import answer


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
