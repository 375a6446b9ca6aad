"""What a batch needs from the disk is read while the one before it is drawn."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path

import pytest
import torch
from drawings import SIZE, batch, candidate, control, shot, write_map
from lora_files import Recipe, lora_at, write_peft
from torch import Tensor

import comicgen
from comicgen.diffusion import reading
from comicgen.diffusion.control import read_control_image
from comicgen.diffusion.models import Components
from comicgen.diffusion.reading import Read, Reading
from comicgen.diffusion.sampling import draw_noise
from comicgen.errors import CandidateError
from comicgen.plan import Batch
from comicgen.sizes import Size
from comicgen.storyboard import Lora, Model
from comicgen.weights import read_model

PATIENCE = 20
"""Seconds until a test gives up."""


POCKET = Path(comicgen.__file__).parent / "pocket" / "model"


def fresh() -> Reading:
    return Reading(lambda size: (4, size.height // 8, size.width // 8), read_model(POCKET))


def numbered(seed: int, *loras: Lora) -> Batch:
    """A batch that is known by its seed."""
    return batch(candidate(shot(loras=loras), seed))


class Panic(BaseException):
    """As extension modules raise it."""


class Disk:
    """Every reading: which seed, in which thread; a seed that is in `held` waits for `go`."""

    def __init__(
        self, held: Sequence[int] = (), errors: Mapping[int, BaseException] | None = None
    ) -> None:
        self.read: list[int] = []
        self.threads: list[threading.Thread] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self._held, self._errors = held, errors or {}

    def draw_noise(self, seeds: Sequence[int], shape: tuple[int, int, int], draws: int) -> Tensor:
        self.read += seeds
        self.threads.append(threading.current_thread())
        if seeds[0] in self._held:
            self.begun.set()
            assert self.go.wait(PATIENCE)
        if seeds[0] in self._errors:
            raise self._errors[seeds[0]]
        return draw_noise(seeds, shape, draws)


def at(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Reading:
    monkeypatch.setattr(reading, "draw_noise", disk.draw_noise)
    return fresh()


def same(one: Read, other: Read) -> bool:
    return torch.equal(one.noise, other.noise)


def test_the_next_batch_is_read_in_another_thread_while_one_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(held=[2])
    ahead, (one, two) = at(disk, monkeypatch), map(numbered, (1, 2))
    ahead.read(one, [two])
    assert disk.begun.wait(PATIENCE)
    disk.go.set()

    assert same(ahead.read(two, []), fresh().read(two, []))
    assert disk.read[:2] == [1, 2]
    assert disk.threads[0] is threading.current_thread() is not disk.threads[1]


def test_every_batch_is_read_once_and_no_more_than_one_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    ahead, batches = at(disk, monkeypatch), [numbered(seed) for seed in range(5)]
    for number, own in enumerate(batches):
        ahead.read(own, batches[number + 1 :])
        assert disk.read[: number + 1] == list(range(number + 1))
        assert len(disk.read) <= number + 2

    assert disk.read == list(range(5))


def test_a_batch_out_of_order_is_read_now(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    ahead, (one, two, three) = at(disk, monkeypatch), map(numbered, (1, 2, 3))
    ahead.read(one, [two])
    found = [ahead.read(each, []) for each in (three, two)]

    assert all(map(same, found, [fresh().read(each, []) for each in (three, two)]))


def test_an_equal_batch_is_not_taken_for_the_one_that_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    ahead = at(disk, monkeypatch)
    ahead.read(numbered(1), [numbered(2)])
    ahead.read(numbered(2), [])

    assert sorted(disk.read) == [1, 2, 2]


def test_what_was_read_is_there_until_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    ahead, (one, two) = at(disk, monkeypatch), map(numbered, (1, 2))
    found = ahead.read(one, [two])
    assert ahead.read(one, [two]) is found
    ahead.read(two, [])
    assert sorted(disk.read) == [1, 2]

    ahead.forget()
    ahead.read(two, [])
    assert sorted(disk.read) == [1, 2, 2]


def test_a_batch_is_there_once_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(held=[2], errors={3: ValueError("no noise")})
    ahead, (one, two, three) = at(disk, monkeypatch), map(numbered, (1, 2, 3))
    ahead.read(one, [two])
    assert disk.begun.wait(PATIENCE)
    assert not ahead.has(two)
    disk.go.set()
    finish(ahead)
    assert [each for each in (one, two, three) if ahead.has(each)] == [two]

    ahead.read(two, [three])
    finish(ahead)
    assert not ahead.has(three)


def finish(ahead: Reading) -> None:
    assert ahead._ahead
    wait([ahead._ahead.read], PATIENCE)


@pytest.mark.parametrize("error", [ValueError("no noise"), MemoryError(), Panic()])
def test_what_goes_wrong_ahead_is_raised_by_its_own_batch(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(errors={2: error})
    ahead, (one, two, three) = at(disk, monkeypatch), map(numbered, (1, 2, 3))
    ahead.read(one, [two, three])
    with pytest.raises(type(error)):
        ahead.read(two, [three])

    assert same(ahead.read(three, []), fresh().read(three, []))


@pytest.mark.parametrize(("sampler", "draws"), [("euler", 1), ("euler a", 9)])
def test_noise_belongs_to_the_seed_and_empty_lanes_have_seed_0(sampler: str, draws: int) -> None:
    own = batch(None, candidate(shot(sampler=sampler), 5), candidate(shot(sampler=sampler), 6))
    found = fresh().read(own, [])

    assert found.noise.shape == (draws, 3, 4, SIZE.height // 8, SIZE.width // 8)
    assert torch.equal(
        found.noise, draw_noise([0, 5, 6], (4, SIZE.height // 8, SIZE.width // 8), draws)
    )
    assert found.images == [None, None, None]


def test_latents_are_told_height_first(pocket: Components) -> None:
    assert pocket.latent_shape(Size(192, 128)) == (4, 16, 24)


def test_noise_is_float32_whatever_the_default_is_meanwhile() -> None:
    """Loading a network in 16 bits changes torch's default for all threads."""
    own = batch(candidate(shot(), 5))
    expected = fresh().read(own, []).noise
    torch.set_default_dtype(torch.float16)
    try:
        found = fresh().read(own, []).noise
    finally:
        torch.set_default_dtype(torch.float32)

    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model("lineart", tmp_path, "x")


@pytest.mark.parametrize("ahead", [False, True])
def test_an_image_that_cannot_be_read_costs_its_lane_only(
    ahead: bool, model: Model, tmp_path: Path
) -> None:
    good, changed = (write_map(tmp_path / f"{name}.png") for name in ("good", "changed"))
    broken = tmp_path / "broken.png"
    broken.write_text("no picture")
    files = (good, changed, broken, tmp_path / "missing.png")
    lanes = [candidate(shot(control=control(model, file))) for file in files]
    write_map(changed, shift=9)
    own = batch(None, *lanes)

    reader = fresh()
    if ahead:
        reader.read(numbered(1), [own])
    empty, image, *errors = reader.read(own, []).images

    assert empty is None
    assert isinstance(image, Tensor)
    assert torch.equal(image, read_control_image(good, SIZE))
    assert all(isinstance(error, CandidateError) for error in errors)
    for error, text in zip(errors, ["changed.png: has changed", "broken", "missing"], strict=True):
        assert text in str(error)


def two_loras(folder: Path) -> list[Lora]:
    model = read_model(POCKET)
    files = [folder / f"{seed}.safetensors" for seed in (1, 2)]
    for seed, file in enumerate(files):
        write_peft(file, model, Recipe(seed=seed))
    return [lora_at(file) for file in files]


def test_loras_are_read_ahead_where_the_set_changes(tmp_path: Path) -> None:
    one, two = two_loras(tmp_path)
    sets: list[tuple[Lora, ...]] = [(one,), (one, two), (one, two), (), (two,)]
    batches = [numbered(seed, *loras) for seed, loras in enumerate(sets)]
    reader = fresh()

    found = [
        [each.lora for each in reader.read(own, batches[number + 1 :]).loras]
        for number, own in enumerate(batches)
    ]

    assert found == [[], [one, two], [], [], [two]]


def test_a_lora_that_cannot_be_read_ahead_is_left_to_its_batch(tmp_path: Path) -> None:
    good, bad = two_loras(tmp_path)
    bad.file.write_bytes(bad.file.read_bytes()[:-1])
    reader, next_one = fresh(), numbered(2, good, bad)
    reader.read(numbered(1), [next_one])
    finish(reader)

    assert not reader.has(next_one)
    assert reader.read(next_one, []).loras == []


def test_memory_that_is_too_short_to_read_ahead_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def panic(*_: object) -> None:
        raise Panic

    reader, next_one = fresh(), numbered(2, *two_loras(tmp_path))
    monkeypatch.setattr(reading, "read_changes", panic)
    reader.read(numbered(1), [next_one])

    assert reader.read(next_one, []).loras == []


def test_a_system_without_another_thread_reads_each_batch_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk = Disk()
    ahead, (one, two) = at(disk, monkeypatch), map(numbered, (1, 2))
    monkeypatch.setattr(threading.Thread, "start", start)
    found = [ahead.read(one, [two]), ahead.read(two, [])]

    assert disk.read == [1, 2]
    assert all(map(same, found, [fresh().read(each, []) for each in (one, two)]))
