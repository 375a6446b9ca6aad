"""The pieces that a picture is made of, each alone; no floor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers import ControlNetModel
from torch import Tensor

from bench_parts import stories
from bench_parts.replays import Desk
from bench_parts.setting import Setting, say
from bench_parts.theirs import Diffusers
from bench_parts.timing import in_turn, timed
from comicgen.diffusion.attention import BACKENDS, Attention
from comicgen.diffusion.graph_task import Predict, Task
from comicgen.diffusion.lora import LoraWeights, read_changes
from comicgen.diffusion.models import Components, load_controlnet, load_model
from comicgen.storyboard import in_order

ROUNDS = 5
COUNTS = (1, 2, 4, 8, 16)
MOMENT = 500.0
HEADS = ((10, 2), (20, 4))
"""Of SDXL's self-attention: how many, and in which fraction of the latents' edges; 64 wide."""


def measure(setting: Setting) -> dict[str, Any]:
    """A step for each number of pictures, a decode, a switch of LoRAs, and attention."""
    bench = _Bench.of(setting)
    with bench.our_desk.working():
        steps = [bench.step(count, control) for control in (False, True) for count in COUNTS]
        return {
            "steps": steps,
            "decode": bench.decode(),
            "LoRA": bench.switches(),
            "attention": bench.attention(),
        }


@dataclass(frozen=True)
class _Bench:
    """diffusers' own modules, and comicgen's."""

    setting: Setting
    theirs: Any
    ours: Components
    their_desk: Desk
    our_desk: Desk

    @classmethod
    def of(cls, setting: Setting) -> "_Bench":
        theirs, parts = Diffusers(setting).pipe, setting.parts
        ours = load_model(parts.model, setting.device, setting.dtype)
        network: Any = ControlNetModel.from_pretrained(parts.controlnet, dtype=setting.dtype)
        their_desk = Desk.beside(theirs.unet, network.to(setting.device))
        our_desk = Desk.beside(ours.unet, load_controlnet(parts.controlnet, ours))
        return cls(setting, theirs, ours, their_desk, our_desk)

    def step(self, count: int, controlled: bool) -> dict[str, Any]:
        """Milliseconds of a step with guidance, called and replayed.

        Until it is captured a graph costs three calls, the capture and its check.
        """
        desk = self.our_desk
        task = desk.task(self.setting.size, count, controlled)
        timestep = desk.timestep(task, MOMENT)
        inputs, plain = task.inputs(task.latents, timestep), self.their_desk.denoiser(controlled)
        arms: dict[str, Callable[[], Tensor]] = {
            "diffusers' modules": lambda: plain.call(inputs),
            "ours": lambda: task.network.call(inputs),
        }
        captured = {}
        if desk.cache.enabled:
            seconds, predict = timed(lambda: self._captured(task), self.setting.device)
            captured["seconds until captured"] = round(seconds, 3)
            arms["replayed"] = lambda: predict(task.latents, timestep)
        timings = self._in_turn(arms)
        desk.cache.clear()
        say(f"pieces   step {count:2}{', control' * controlled:9} {_told(timings)}")
        return {"pictures": count, "control": controlled, **timings, **captured}

    def _captured(self, task: Task) -> Predict:
        self.our_desk.cache.capture(task)
        [predict] = self.our_desk.cache.begin([task])
        return predict

    def decode(self) -> dict[str, Any]:
        """Milliseconds from one picture's latents to its pixels."""
        device, shape = self.setting.device, self.ours.latent_shape(self.setting.size)
        latents = torch.randn(1, *shape, device=device).to(self.setting.dtype)

        def decoding(vae: Any) -> Callable[[], Tensor]:
            return lambda: vae.decode(latents, return_dict=False)[0]

        vaes = {"diffusers' modules": self.theirs.vae, "ours": self.ours.vae}
        timings = self._in_turn({name: decoding(vae) for name, vae in vaes.items()})
        say(f"pieces   decode          {_told(timings)}")
        return timings

    def switches(self) -> dict[str, Any]:
        """Milliseconds to read a LoRA's file, and to write it over another's weights."""
        encoders = {name: getattr(self.ours, name) for name in ("text_encoder", "text_encoder_2")}
        weights = LoraWeights({"unet": self.ours.unet, **encoders}, self.ours.folder)
        panels = stories.story("loras", self.setting, 3, 1, 1).panels
        loras = [in_order(panel.loras) for panel in panels if len(panel.loras) == 1]
        read: dict[str, Any] = {}

        def read_all() -> None:
            for [lora] in loras:
                read[lora.digest] = read_changes(lora, self.ours.folder)

        def switch() -> None:
            for [lora] in loras:
                weights.set([lora], [read[lora.digest]])

        timings = self._in_turn({"read": read_all, "switch": switch}, len(loras))
        weights.set([])
        say(f"pieces   LoRA            {_told(timings)}")
        return timings

    def attention(self) -> list[dict[str, Any]]:
        """Milliseconds of the self-attention of a guided batch of four, by each backend."""
        return [self._attention(heads, fraction) for heads, fraction in HEADS]

    def _attention(self, heads: int, fraction: int) -> dict[str, Any]:
        _, height, width = self.ours.latent_shape(self.setting.size)
        tokens = (height // fraction) * (width // fraction)
        some = torch.randn(8, heads, tokens, 64, device=self.setting.device)
        query = some.to(self.setting.dtype)

        def attending(name: str) -> Callable[[], Tensor]:
            def attend() -> Tensor:
                with Attention(name).kernels():
                    return F.scaled_dot_product_attention(query, query, query)

            return attend

        timings = self._in_turn({name: attending(name) for name in BACKENDS})
        say(f"pieces   attention {heads:2}x{tokens:<6}{_told(timings)}")
        return {"heads": heads, "tokens": tokens, **timings}

    def _in_turn(self, arms: Mapping[str, Callable[[], Any]], share: int = 1) -> dict[str, float]:
        """Median milliseconds of each arm, after a round to warm up."""
        device = self.setting.device
        in_turn(arms, 1, device)
        timings = in_turn(arms, self.setting.rounds or ROUNDS, device)
        return {name: round(1e3 * each.median / share, 3) for name, each in timings.items()}


def _told(timings: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in timings.items())
