"""The journal forgives what a crash can do to it, and nothing else."""

import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comicgen.engine import GraphLabel, Note
from comicgen.errors import OutputError
from comicgen.outputs.entries import (
    Asked,
    Begun,
    Done,
    Ended,
    Entry,
    Failure,
    Head,
    Settled,
    decode,
    encode,
)
from comicgen.outputs.journal import Journal, create, read

HEAD = Head("demo", "../../storyboards/demo.yaml", "plain", "0.1.0")
DIGEST = "0f" * 32
ENTRIES: list[Entry] = [
    Begun("2025-01-01T00:00:00+00:00", {"device": "cpu"}, 3, ["a warning"], [{"graph": True}]),
    Settled({"width": 64, "height": 96}, "plain"),
    Asked({"kind": "more", "panels": ["p01"], "count": 2}),
    Done(
        candidate="p01-c01",
        panel="p01",
        number=1,
        seed=7,
        fingerprint=DIGEST,
        fields={"prompt": 'two\nlines, "quoted": 灯塔 \u2028', "negative": None},
        file="p01/p01-c01.png",
        sha256=DIGEST,
        bytes=1234,
        mtime_ns=1_700_000_000_123_456_789,
        bucket={"batch": 1, "size": {"width": 64, "height": 64}},
        lane=0,
        environment="here",
        seconds=1.5,
        notes=["decoded again"],
    ),
    Failure("p01-c02", "p01", 2, 8, DIGEST, {"prompt": "a"}, "here", "not a number"),
    Note("a remark"),
    GraphLabel(1, "8 x 1024x1024, control", 1.4, 7 * 2**30, 11 * 2**30, 20, "cudnn"),
    Ended("2025-01-01T00:01:00+00:00", 60.0, 10**9, "interrupted"),
]
LAST = Note("after all")


def test_a_run_of_which_no_choices_were_written_had_none() -> None:
    """As in journals that are older than choices."""
    begun = Begun("2025-01-01T00:00:00+00:00", {"device": "cpu"}, 3, ["a warning"])
    line = encode(begun).replace(b', "choices": []', b"")
    body, _, _ = line.rpartition(b', "crc"')

    assert begun == decode(body + b', "crc": "%08x"}' % zlib.crc32(body))


def written(path: Path, entries: list[Entry]) -> Path:
    create(path, HEAD)
    journal = Journal(path, read(path).length)
    for entry in entries:
        journal.append(entry)
    journal.close()
    return path


@pytest.mark.parametrize("entry", [HEAD, *ENTRIES], ids=lambda entry: type(entry).__name__)
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    line = encode(entry)

    assert entry == decode(line)
    assert line.count(b"\n") == 1


def test_a_journal_is_read_in_the_order_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", ENTRIES)

    assert (HEAD, tuple(ENTRIES)) == (read(path).head, read(path).entries)
    assert read(path).length == path.stat().st_size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_journal_cut_anywhere_after_its_head_reads_as_a_prefix_and_goes_on(
    data: st.DataObject, tmp_path: Path
) -> None:
    path = tmp_path / "journal.jsonl"
    content = b"".join(map(encode, [HEAD, *ENTRIES]))
    cut = data.draw(st.integers(len(encode(HEAD)), len(content)))
    path.write_bytes(content[:cut])

    reading = read(path)
    journal = Journal(path, reading.length)
    journal.append(LAST)
    journal.close()

    whole_lines = content[:cut].count(b"\n") - 1
    assert tuple(ENTRIES[:whole_lines]) == reading.entries
    assert (*reading.entries, LAST) == read(path).entries


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rest=st.binary(min_size=1).filter(lambda rest: b"\n" not in rest[:-1]))
def test_whatever_stands_for_a_last_line_is_forgiven(rest: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(map(encode, [HEAD, *ENTRIES])) + rest)

    assert tuple(ENTRIES) == read(path).entries


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 40, b"[]", b"7", b'{"event": "done"}', b'{"a": 1}']
)
def test_a_line_damaged_before_the_last_is_named_with_its_number_and_a_cure(
    tmp_path: Path, damage: bytes
) -> None:
    path = written(tmp_path / "journal.jsonl", ENTRIES)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], damage, *lines[4:]]))

    with pytest.raises(
        OutputError, match=r"journal\.jsonl:4: the line is damaged.*delete the line"
    ):
        read(path)


@pytest.mark.parametrize(
    ("entry", "cure"),
    [
        (ENTRIES[1], "draw all with --redo: the numerics of a size are chosen again"),
        (ENTRIES[2], "delete the line and ask for it again"),
        (ENTRIES[3], "delete the line: what it told of is drawn again"),
    ],
    ids=["settled", "asked", "done"],
)
def test_the_cure_for_a_damaged_line_is_one_for_what_it_told(
    tmp_path: Path, entry: Entry, cure: str
) -> None:
    path = written(tmp_path / "journal.jsonl", ENTRIES)
    path.write_bytes(path.read_bytes().replace(encode(entry), encode(entry)[:-9] + b"\n"))

    with pytest.raises(OutputError, match=cure):
        read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), bit=st.integers(0, 7))
def test_not_one_bit_before_the_last_line_can_change_unseen(
    data: st.DataObject, bit: int, tmp_path: Path
) -> None:
    path = tmp_path / "journal.jsonl"
    content = bytearray(b"".join(map(encode, [HEAD, *ENTRIES])))
    last = len(b"\n" + encode(ENTRIES[-1]))
    place = data.draw(st.integers(0, len(content) - last - 1))
    content[place] ^= 1 << bit
    path.write_bytes(content)

    with pytest.raises(OutputError, match=r"journal\.jsonl"):
        read(path)


def test_a_path_that_is_no_utf_8_is_kept(tmp_path: Path) -> None:
    entry = Head("l\udcff", "../l\udcff.yaml", "plain", "0.1.0")

    assert entry == decode(encode(entry))
    assert encode(entry).isascii()


@pytest.mark.parametrize("head", [b"", b'{"event": "head"', b'{"event": "note", "text": "a"}\n'])
def test_a_journal_without_its_head_is_damaged(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(head)

    with pytest.raises(OutputError, match=r"journal\.jsonl:1: .*move the folder away"):
        read(path)


def test_the_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event": "head", "format": 2, "story": {}}\n{"event": "new"}\n\n')

    with pytest.raises(OutputError, match="format 2, and this comicgen reads format 1"):
        read(path)
