"""Where a command stands: the storyboard, its output folder, and what would draw now."""

from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Literal, Self

from comicgen.calibration import Calibration
from comicgen.environment import Environment, current, default_batch
from comicgen.errors import CommandError
from comicgen.numerics import PRECISIONS, Numerics
from comicgen.outputs import folder_for, read_memory
from comicgen.plan import (
    EVERYTHING,
    Figures,
    Kernels,
    Memory,
    Plan,
    Selection,
    Terms,
    numerics_for,
    plan,
)
from comicgen.storyboard import Storyboard, load
from comicgen.weights import read_controlnet, read_lora, read_model

Wish = Literal["auto", "plain", "fused"]


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a plan is made from, before anything is written.

    `environment` has the numerics of the folder, or those that it would get.
    """

    storyboard: Storyboard
    folder: Path
    environment: Environment
    memory: Memory
    lanes: int = 1
    captured: bool = False
    insisted: bool = False
    figures: Figures = field(default_factory=Figures)

    @property
    def calibration(self) -> Calibration:
        """What is remembered of this machine."""
        return Calibration.here(self.environment, self.storyboard.model.folder)

    def weights(self, planned: Plan) -> int:
        """Bytes that the weights of a plan take in the memory of the device.

        Those that LoRAs change lie there twice, as they are kept pristine.
        """
        model, batches = read_model(self.storyboard.model.folder), planned.batches
        controls = {batch.control.model.folder for batch in batches if batch.control}
        loras = {lora.file for batch in batches for lora in batch.loras}
        changed = {layer.home for file in loras for layer in read_lora(file, model).layers}
        parts = [
            *model.weights.values(),
            *(read_controlnet(each, model).weights for each in controls),
        ]
        numbers = sum(part.parameters for part in parts)
        numbers += sum(prod(model.layers[part][name]) for part, name in changed)
        if self.environment.precision == "fp32":
            return 4 * numbers
        plain = any(batch.numerics == "plain" for batch in batches)
        widened = model.weights["vae"].parameters if plain and model.force_upcast else 0
        return 2 * (numbers + widened)

    def ready(self, wish: Wish, batch: int | None, graphs: bool, insisted: bool = False) -> Self:
        """With numerics for good, so many lanes or as many as suit the device, and measurements.

        Raises:
            CommandError: the wish cannot be had here, or the folder has other numerics.
        """
        here = self.environment
        figures = self.calibration.figures(here) if here.on_gpu else Figures()
        ready = replace(
            self,
            lanes=batch or default_batch(here),
            captured=graphs,
            insisted=insisted,
            figures=figures,
        )
        return replace(ready, environment=here.drawing(ready._numerics(wish)))

    def in_plain(self, why: str) -> Self:
        """The same with plain numerics; the manifest notes why."""
        storyboard = replace(self.storyboard, warnings=(*self.storyboard.warnings, why))
        return replace(self, storyboard=storyboard, environment=self.environment.drawing("plain"))

    def plan(self, selection: Selection = EVERYTHING) -> Plan:
        """What would be drawn.

        Raises:
            CommandError: the selection names what is not there.
        """
        here = self.environment
        return plan(
            self.storyboard,
            self.memory,
            selection,
            batch=self.lanes,
            captured=self.captured,
            insisted=self.insisted,
            environment=here.label,
            kernels=Kernels(here.kind, self.figures, here.drawing("plain").label),
        )

    def _numerics(self, wish: Wish) -> Numerics:
        here, own = self.environment, self.memory.numerics
        if own and wish not in ("auto", own) and not (own == "fused" and here.why_not_fused):
            raise CommandError(
                f"--numerics {wish}: {self.folder} is drawn with {own} numerics, to the end; "
                "leave that out, or give --output another folder"
            )
        if here.why_not_fused and "fused" in (wish, own):
            begun = f", which {self.folder} is drawn with" if own else ""
            raise CommandError(
                f"{here.hardware} cannot draw with fused numerics{begun}: {here.why_not_fused}; "
                + self._cure(wish)
            )
        if wish != "auto" or own or here.why_not_fused:
            return own or ("plain" if wish == "auto" else wish)
        terms = Terms(self.lanes, self.captured, figures=self.figures, insisted=self.insisted)
        return numerics_for(self.storyboard, terms)

    def _cure(self, wish: Wish) -> str:
        """How to have fused numerics all the same, or to do without them."""
        precision, without, needs = self.storyboard.precision, [], []
        if wish == "fused":
            without.append("leave --numerics out")
        if self.memory.numerics:
            without.append("give --output another folder")
        if not self.environment.on_gpu:
            needs.append("use a GPU as --device")
        if precision not in (None, *PRECISIONS):
            needs.append(f"take `precision: {precision}` out of the storyboard")
        return " and ".join(needs or ["install Triton"]) + ", or " + " and ".join(without)


def look(story: Path, output: Path | None, device: str) -> Situation:
    """Read the storyboard and its output folder; enough to tell what is done.

    Raises:
        StoryboardError: the storyboard or a file it names is wrong.
        CommandError: there is no such device.
        OutputError: the folder is another storyboard's, or damaged.
    """
    storyboard = load(story)
    folder = folder_for(storyboard.path, output)
    memory = read_memory(folder, storyboard)
    environment = current(device, storyboard.precision).drawing(memory.numerics or "plain")
    return Situation(storyboard, folder, environment, memory)
