"""Where a command stands: the storyboard, its output folder, and what would draw now."""

from dataclasses import dataclass
from pathlib import Path

from comicgen.environment import Environment, current, default_batch
from comicgen.outputs import folder_for, read_memory
from comicgen.plan import EVERYTHING, Memory, Plan, Selection, plan
from comicgen.storyboard import Storyboard, load


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a plan is made from, before anything is written."""

    storyboard: Storyboard
    folder: Path
    environment: Environment
    memory: Memory

    def plan(self, selection: Selection = EVERYTHING, batch: int | None = None) -> Plan:
        """What would be drawn, with so many lanes or as many as suit the device.

        Raises:
            CommandError: the selection names what is not there.
        """
        here = self.environment
        return plan(
            self.storyboard,
            self.memory,
            selection,
            batch=batch or default_batch(here),
            captured=here.on_gpu,
            environment=here.label,
        )


def look(story: Path, output: Path | None, device: str) -> Situation:
    """Read the storyboard and its output folder.

    Raises:
        StoryboardError: the storyboard or a file it names is wrong.
        CommandError: there is no such device.
        OutputError: the folder is another storyboard's, or damaged.
    """
    storyboard = load(story)
    folder = folder_for(storyboard.path, output)
    environment = current(device, storyboard.precision)
    return Situation(storyboard, folder, environment, read_memory(folder, storyboard))
