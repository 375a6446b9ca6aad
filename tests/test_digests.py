"""Digests tell contents apart, and are remembered only when that is safe."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Queue

import pytest

from comicgen import digests
from comicgen.digests import digest_file, digest_files

LONG_AGO = 1_700_000_000_000_000_000


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMICGEN_CACHE", str(folder))
    return folder


@pytest.fixture
def saving_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "WORTH_SAVING", 0)


def write(file: Path, content: str, mtime: int | None = LONG_AGO) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    if mtime is not None:
        os.utime(file, ns=(mtime, mtime))
    return file


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def in_another_process(*files: Path, then: str = "") -> list[str]:
    code = (
        "import sys; from pathlib import Path; from comicgen.digests import digest_file\n"
        "for name in sys.argv[1:]: print(digest_file(Path(name)))\n" + then
    )
    command = [sys.executable, "-c", code, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def remembered(cache_folder: Path) -> set[str]:
    return {Path(name).name for name in json.loads((cache_folder / "digests.json").read_text())}


def test_a_digest_is_the_sha256_of_the_content(tmp_path: Path) -> None:
    file = write(tmp_path / "a.png", "lamp")

    assert digest_file(file) == sha("lamp")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        digest_file(tmp_path / "absent.png")
    with pytest.raises(FileNotFoundError):
        digest_files(tmp_path, [tmp_path / "absent"])


def test_a_file_of_same_path_size_and_time_is_not_read_again_by_the_next_run(
    tmp_path: Path,
) -> None:
    file = write(tmp_path / "a.png", "old")
    in_another_process(file)
    write(file, "new")

    assert in_another_process(file) == [sha("old")]


@pytest.mark.parametrize(("content", "mtime"), [("new", LONG_AGO + 1), ("longer", LONG_AGO)])
def test_another_time_or_size_is_read_again(tmp_path: Path, content: str, mtime: int) -> None:
    file = write(tmp_path / "a.png", "old")
    digest_file(file)
    write(file, content, mtime)

    assert digest_file(file) == sha(content)


@pytest.mark.parametrize("ahead", [-1_000_000_000, 0, 3_600_000_000_000])
def test_a_file_changed_just_now_or_in_the_future_is_not_trusted(
    tmp_path: Path, ahead: int
) -> None:
    mtime = time.time_ns() + ahead
    file = write(tmp_path / "a.png", "old", mtime)
    digest_file(file)
    write(file, "new", mtime)

    assert digest_file(file) == sha("new")


def test_two_processes_lose_nothing_of_each_other(tmp_path: Path, cache_folder: Path) -> None:
    first, second = write(tmp_path / "a.png", "a"), write(tmp_path / "b.png", "b")
    other = (
        "import subprocess; subprocess.run([sys.executable, '-c',"
        "'import sys; from pathlib import Path; from comicgen.digests import digest_file;'"
        f"'digest_file(Path(sys.argv[1]))', {str(second)!r}], check=True)"
    )
    in_another_process(first, then=other)

    assert remembered(cache_folder) == {"a.png", "b.png"}


@pytest.mark.usefixtures("saving_at_once")
def test_the_cache_is_written_only_when_something_changed(
    tmp_path: Path, cache_folder: Path
) -> None:
    file = write(tmp_path / "a.png", "a")
    digest_file(file)
    before = (cache_folder / "digests.json").stat()
    digest_file(file)
    in_another_process(file)
    after = (cache_folder / "digests.json").stat()

    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [entry.name for entry in cache_folder.iterdir()] == ["digests.json"]


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[" * 99_999,
        "[]",
        "\x00",
        '{"FILE": 3}',
        '{"FILE": [3, "x", "y"]}',
        '{"FILE": [3, MTIME, "1"]}',
    ],
)
@pytest.mark.usefixtures("saving_at_once")
def test_a_damaged_cache_is_ignored_and_replaced(
    tmp_path: Path, cache_folder: Path, damage: str
) -> None:
    file = write(tmp_path / "a.png", "abc")
    text = damage.replace("FILE", str(file)).replace("MTIME", str(LONG_AGO))
    write(cache_folder / "digests.json", text)

    assert digest_file(file) == sha("abc")
    assert remembered(cache_folder) == {"a.png"}


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.png", "a")
    monkeypatch.setenv("COMICGEN_CACHE", str(file / "below"))

    assert in_another_process(file) == [sha("a")]


@pytest.mark.usefixtures("saving_at_once")
def test_a_long_cache_forgets_files_that_are_gone(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MANY", 3)
    files = [write(tmp_path / f"{n}.png", "x") for n in range(4)]
    for file in files[:3]:
        digest_file(file)
    files[0].unlink()
    files[1].unlink()
    digest_file(files[3])

    assert remembered(cache_folder) == {"2.png", "3.png"}


def test_without_an_own_folder_the_users_cache_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.png", "a")
    monkeypatch.delenv("COMICGEN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    in_another_process(file)
    monkeypatch.delenv("XDG_CACHE_HOME")
    in_another_process(file)

    assert remembered(tmp_path / "xdg" / "comicgen") == {"a.png"}
    assert remembered(tmp_path / "home" / ".cache" / "comicgen") == {"a.png"}


@pytest.mark.parametrize("home", ["", "home"])
def test_a_home_that_is_no_absolute_path_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    file = write(tmp_path / "a.png", "a")
    monkeypatch.delenv("COMICGEN_CACHE")
    monkeypatch.setenv("HOME", home)
    monkeypatch.chdir(tmp_path)
    in_another_process(file)

    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


NAMES = ("model_index.json", "unet/weights.safetensors", "tokenizer/merges.txt")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in NAMES:
        write(tmp_path / "model" / name, name)
    return tmp_path / "model"


def digest(folder: Path, *names: str) -> str:
    return digest_files(folder, [folder / name for name in names or NAMES])


def test_moving_a_folder_changes_nothing(model: Path) -> None:
    before = digest(model)

    assert digest(model.rename(model.parent / "elsewhere")) == before


def test_the_order_of_the_files_changes_nothing(model: Path) -> None:
    assert digest(model, *NAMES[::-1]) == digest(model)


def test_files_that_were_not_named_do_not_count(model: Path) -> None:
    before = digest(model)
    write(model / "unet/other.safetensors", "x")

    assert digest(model) == before


def test_a_changed_a_renamed_and_a_missing_file_count(model: Path) -> None:
    whole = digest(model)
    write(model / NAMES[1], "another", LONG_AGO + 1)
    changed = digest(model)
    (model / NAMES[1]).rename(model / "unet/other.safetensors")
    renamed = digest(model, NAMES[0], "unet/other.safetensors", NAMES[2])

    assert len({whole, changed, renamed, digest(model, *NAMES[::2])}) == 4


def test_links_are_followed(model: Path) -> None:
    before = digest(model)
    (model / "unet").rename(model.parent / "stored")
    (model / "unet").symlink_to(model.parent / "stored")

    assert digest(model) == before


def test_work_is_done_while_a_large_file_is_digested_for_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not where all is known; what goes wrong in it does not matter."""
    small, large = write(tmp_path / "small", "1"), write(tmp_path / "large", "22")
    monkeypatch.setattr(digests, "LARGE", 2)
    done = Queue[str]()

    def work() -> None:
        done.put(threading.current_thread().name)
        raise RuntimeError("of no matter")

    with digests.while_digesting(work):
        digest_file(small)
        assert done.empty()
        digest_file(large)
        assert done.get(timeout=20) == "beside"
    with digests.while_digesting(work):
        digest_file(large)
    write(large, "333")
    assert digest_file(large) == sha("333")

    assert done.empty()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("size", [0, 1, digests.AT_LEAST, digests.AT_ONCE, 3 * digests.AT_ONCE])
def test_a_file_of_any_size_is_digested_whole_beside_work_or_not(
    size: int, beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(size))
    monkeypatch.setattr(digests, "LARGE", 0)
    go = threading.Event()
    with digests.while_digesting(go.wait if beside else lambda: None):
        found = digest_file(file)
    go.set()

    assert found == hashlib.sha256(file.read_bytes()).hexdigest()
