"""From panels as written to panels to be drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from comicgen.errors import InputError, Place
from comicgen.sizes import Size, read_size, size_for, trained_sizes
from comicgen.storyboard.complaints import Complaints, quoted
from comicgen.storyboard.files import FoundModel, find_controlnet, find_image, find_lora, fits
from comicgen.storyboard.format import WrittenControl, WrittenLora, WrittenPanel
from comicgen.storyboard.grammar import Wording, word
from comicgen.storyboard.levels import Level, Setting, setting
from comicgen.storyboard.marked import Entries
from comicgen.storyboard.story import Control, Lora, Panel, in_window


@dataclass(frozen=True, slots=True)
class Character:
    """The words written for a character, and the LoRAs that come with them."""

    words: str
    loras: tuple[tuple[WrittenLora, Place], ...]


class PanelReader:
    """Writes defaults, characters and style into panels, and looks at the files they name.

    Without a model, what depends on it is not looked at.
    """

    def __init__(
        self, base: Path, model: FoundModel | None, shared: Sequence[Level], complaints: Complaints
    ) -> None:
        headers = model.folder if model else None
        self.sample_size = headers.sample_size if headers else 0
        self.shared = shared
        self.complaints = complaints
        self.characters: dict[str, Character] = {}
        self._lora = cache(partial(find_lora, base, headers))
        self._controlnet = cache(partial(find_controlnet, base, headers))
        self._image = cache(partial(find_image, base))
        self._first_cut = cache(model.first_cut if model else _nothing_cut)

    def read(self, written: WrittenPanel, node: Entries) -> Panel | None:
        """The panel; None where complaints leave too little of it."""
        levels = (Level(written, node, f"panel {quoted(written.id)}: "), *self.shared)
        size = self._size(levels)
        prompt, mentioned = self._prompt(written, node, levels)
        negative = self._negative(levels)
        loras = self._loras(levels, mentioned)
        control = self._control(levels, size)
        if size is None:
            return None
        return Panel(
            id=written.id,
            prompt=prompt,
            negative=negative,
            size=size,
            steps=setting(levels, "steps").value,
            sampler=setting(levels, "sampler").value,
            guidance=setting(levels, "guidance").value,
            candidates=setting(levels, "candidates").value,
            seed=written.seed,
            loras=loras,
            control=control,
            title=written.title,
            caption=written.caption,
            place=node.place,
        )

    def word(self, text: str, place: Place, characters: dict[str, str] | None = None) -> Wording:
        """Write a text out, complaining about what its grammar refuses."""
        wording = word(text, characters)
        for what, cure in wording.problems:
            self.complaints.add(place, what, cure)
        return wording

    def _size(self, levels: Sequence[Level]) -> Size | None:
        for level in levels:
            if level.writes("aspect") and level.writes("size"):
                place = max(level.node.keys[key] for key in ("aspect", "size"))
                self.complaints.add(place, "aspect and size are both written", "keep one of them")
        chosen = setting(levels, "aspect", "size")
        if chosen.key == "aspect" and not self.sample_size:
            return None
        with self.complaints.at(chosen.place):
            read = size_for if chosen.key == "aspect" else read_size
            size = read(chosen.value, self.sample_size)
            trained = trained_sizes(self.sample_size)
            if trained and size not in trained:
                what = f"the model was not trained on size {size}"
                self.complaints.warn(chosen.place, what, "pictures may repeat or crop things")
            return size
        return None

    def _prompt(
        self, written: WrittenPanel, node: Entries, levels: Sequence[Level]
    ) -> tuple[str, tuple[str, ...]]:
        """The whole prompt, and the characters that it mentions."""
        place = node.at("prompt").place
        words = {name: character.words for name, character in self.characters.items()}
        wording = self.word(written.prompt, place, words)
        style = setting(levels, "style")
        text = wording.text
        if style.value:
            text = f"{text}, {self.word(style.value, style.place).text}"
        self._check_length(text, place, "the prompt, with characters and style written in,")
        return text, wording.mentioned

    def _negative(self, levels: Sequence[Level]) -> str | None:
        chosen, guidance = setting(levels, "negative"), setting(levels, "guidance")
        if chosen.value is None:
            return None
        if guidance.value <= 1:
            place = (guidance if guidance.level is levels[0] else chosen).place
            what = f"with guidance {guidance.value:g} the negative prompt has no effect"
            self.complaints.add(place, what, "write negative: null, or guidance above 1")
        text = self.word(chosen.value, chosen.place).text
        self._check_length(text, chosen.place, "the negative prompt")
        return text

    def _check_length(self, text: str, place: Place, what: str) -> None:
        cut = self._first_cut(text)
        if cut is not None:
            what = f"{what} is longer than 75 tokens: it would end before {quoted(cut)}"
            self.complaints.add(place, what, "shorten it")

    def _loras(self, levels: Sequence[Level], mentioned: Sequence[str]) -> tuple[Lora, ...]:
        """The panel's LoRAs and then its characters'; each file once."""
        chosen: dict[str, tuple[Lora, Place]] = {}
        listed: set[tuple[str, str]] = set()
        for owner, written, place in self._named_loras(setting(levels, "loras"), mentioned):
            with self.complaints.at(place):
                found = self._lora(written.file)
                if (owner, found.digest) in listed:
                    raise InputError(
                        f"LoRA {quoted(written.file)} is in this list twice; "
                        "write it once, with the weight that it shall have"
                    )
                listed.add((owner, found.digest))
                lora = Lora(written.file, found.file, found.digest, written.weight)
                first, where = chosen.setdefault(found.digest, (lora, place))
                if first.weight != lora.weight:
                    raise InputError(
                        f"LoRA {quoted(lora.written)} has weight {lora.weight:g} here, but "
                        f"{quoted(first.written)}, the same file, has {first.weight:g} on line "
                        f"{where.line}, and one panel asks for both; write the same weight"
                    )
        return tuple(lora for lora, _ in chosen.values())

    def _named_loras(
        self, chosen: Setting, mentioned: Sequence[str]
    ) -> Iterator[tuple[str, WrittenLora, Place]]:
        """Each with the character who brings it, "" for the panel itself."""
        for index, written in enumerate(chosen.value or ()):
            yield "", written, chosen.inside(index, "file")
        for name in mentioned:
            yield from ((name, *lora) for lora in self.characters[name].loras)

    def check_lora(self, written: WrittenLora, place: Place) -> None:
        """Complain if a LoRA cannot be used."""
        with self.complaints.at(place):
            self._lora(written.file)

    def _control(self, levels: Sequence[Level], size: Size | None) -> Control | None:
        chosen, who = setting(levels, "control"), levels[0].who
        written: WrittenControl | None = chosen.value
        if written is None:
            return None
        self._window(chosen, setting(levels, "steps").value, who)
        model = None
        with self.complaints.at(chosen.inside("model"), chosen.level.who):
            model = self._controlnet(written.model)
        place = chosen.inside("image")
        with self.complaints.at(place, chosen.level.who):
            image = self._image(written.image)
            if image.unreadable:
                what = f"control image {quoted(written.image)} {image.unreadable}"
                self.complaints.warn(place, f"{what}, or its panel will fail")
            elif image.size and size and not fits(image.size, size):
                what = f"control image {quoted(written.image)} is {image.size}"
                self.complaints.add(
                    place,
                    f"{who}{what}, but the panel is drawn in {size}",
                    "crop or pad it to that size or its aspect",
                )
            if model:
                share = (written.weight, written.start, written.end)
                return Control(model, image.file, image.digest, *share)
        return None

    def _window(self, chosen: Setting, steps: int, who: str) -> None:
        """Complain about a window in which the ControlNet would never work."""
        start, end = chosen.value.start, chosen.value.end
        place = max(chosen.inside(key) for key in ("start", "end"))
        if start >= end:
            self.complaints.add(place, f"start {start:g} must be less than end {end:g}")
        elif not any(in_window(start, end, step, steps) for step in range(steps)):
            what = f"{who}no step of {steps} lies between start {start:g} and end {end:g}"
            self.complaints.add(place, what, "widen the window to one step at least")


def _nothing_cut(text: str) -> None:
    return None
