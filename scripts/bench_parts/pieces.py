"""The pieces that a picture is made of, each alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers import ControlNetModel
from torch import Tensor

from bench_parts import stories
from bench_parts.replays import Desk
from bench_parts.setting import Setting, say
from bench_parts.theirs import Diffusers
from bench_parts.timing import in_turn, judged, timed
from comicgen.diffusion.attention import BACKENDS, Attention
from comicgen.diffusion.graph_task import Predict, Task
from comicgen.diffusion.lora import LoraWeights, read_changes
from comicgen.diffusion.models import Components, load_controlnet, load_model
from comicgen.storyboard import in_order

ROUNDS = 5
COUNTS = (1, 2, 4, 8, 16)
MOMENT = 500.0
DECODE_FLOOR, SWITCH_FLOOR = 36.0, 25.0
"""Milliseconds, at most."""

EXACTNESS_FLOOR = 0.04
"""By which fraction a step may take longer so that a picture has the bits that it has alone."""

HEADS = ((10, 2), (20, 4))
"""Of SDXL's self-attention: how many, and in which fraction of the latents' edges; 64 wide."""


def measure_steps(setting: Setting) -> dict[str, Any]:
    """A step for each number of pictures, without and with a ControlNet."""
    bench = _Bench.of(setting)
    with bench.desk.working():
        counts = setting.pictures or COUNTS
        every = [bench.step(count, control) for control in (False, True) for count in counts]
    return {"steps": every}


def measure(setting: Setting) -> dict[str, Any]:
    """A decode, a switch of LoRAs, and attention."""
    bench = _Bench.of(setting)
    with bench.desk.working():
        return {
            "decode": bench.decode(),
            "LoRA": bench.switches(),
            "attention": bench.attention(),
        }


@dataclass(frozen=True)
class _Bench:
    """diffusers' own modules, and comicgen's: plain, and fused, which is drawn with."""

    setting: Setting
    theirs: Any
    models: Mapping[str, Components]
    desks: Mapping[str, Desk]

    @classmethod
    def of(cls, setting: Setting) -> "_Bench":
        theirs, parts = Diffusers(setting).pipe, setting.parts
        network: Any = ControlNetModel.from_pretrained(parts.controlnet, dtype=setting.dtype)
        desks = {"diffusers' modules": Desk.beside(theirs.unet, network.to(setting.device))}
        models = {
            kind: load_model(parts.model, setting.device, setting.dtype, kind == "fused")
            for kind in dict.fromkeys(("plain", setting.environment.kind))
        }
        for kind, model in models.items():
            desks[kind] = Desk.beside(model.unet, load_controlnet(parts.controlnet, model))
        return cls(setting, theirs, models, desks)

    @property
    def ours(self) -> Components:
        """What is drawn with."""
        return self.models[self.setting.environment.kind]

    @property
    def desk(self) -> Desk:
        """The one that is drawn with."""
        return self.desks[self.setting.environment.kind]

    def step(self, count: int, controlled: bool) -> dict[str, Any]:
        """Milliseconds of a step with guidance, called, and replayed.

        `hasty` gives up that a picture has the bits that it has alone. Until it is captured a
        graph costs three calls, the capture and its check.
        """
        arms: dict[str, Callable[[], Tensor]] = {}
        captured: dict[str, Any] = {}
        for name, desk in self.desks.items():
            task = desk.task(self.setting.size, count, controlled)
            inputs = task.inputs(task.latents, desk.timestep(task, MOMENT))
            arms[name] = partial(task.network.call, inputs)
            if name != "diffusers' modules" and desk.cache.enabled:
                seconds, predict = timed(partial(_captured, desk, task), self.setting.device)
                captured[f"{name}, seconds until captured"] = round(seconds, 3)
                arms[f"{name}, replayed"] = partial(predict, task.latents, inputs["timestep"])
        if self.desk.cache.enabled and count > 1:
            arms["hasty, replayed"] = self._hasty(count, controlled)
        timings = self._in_turn(arms)
        for desk in self.desks.values():
            desk.cache.clear()
        say(f"steps    {count:2}{', control' * controlled:9} {_told(timings)}")
        told = {"pictures": count, "control": controlled, **timings, **captured}
        return told | self._cost(timings)

    def _cost(self, timings: Mapping[str, float]) -> dict[str, Any]:
        """What exactness costs, where it was tried without."""
        if (hasty := timings.get("hasty, replayed")) is None:
            return {}
        own = timings[f"{self.setting.environment.kind}, replayed"]
        return {"exactness costs": judged(own / hasty - 1, EXACTNESS_FLOOR, most=True)}

    def _hasty(self, count: int, controlled: bool) -> Callable[[], Tensor]:
        """A graph of the networks alone, without what keeps a picture's bits."""
        desk = Desk.beside(self.desk.unet, self.desk.controlnet)
        desk.verdicts.found = _Always()
        task = desk.task(self.setting.size, count, controlled)
        predict = _captured(desk, task)
        return partial(predict, task.latents, desk.timestep(task, MOMENT))

    def decode(self) -> dict[str, Any]:
        """Milliseconds from one picture's latents to its pixels."""
        device, shape = self.setting.device, self.ours.latent_shape(self.setting.size)
        latents = torch.randn(1, *shape, device=device)
        vaes = {"diffusers' modules": self.theirs.vae}
        vaes |= {kind: model.vae for kind, model in self.models.items()}

        def decoding(vae: Any) -> Callable[[], Tensor]:
            own = latents.to(vae.dtype)
            return lambda: vae.decode(own, return_dict=False)[0]

        timings = self._in_turn({name: decoding(vae) for name, vae in vaes.items()})
        say(f"pieces   decode          {_told(timings)}")
        own = timings[self.setting.environment.kind]
        return {**timings, "ours, ms": judged(own, DECODE_FLOOR, most=True)}

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
        return {**timings, "switch, ms": judged(timings["switch"], SWITCH_FLOOR, most=True)}

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


class _Always(dict[Any, int]):
    """Says of every operation that it may be done for all pictures at once."""

    def get(self, key: Any, default: Any = None) -> int:
        pictures: int = key[1]
        return pictures


def _captured(desk: Desk, task: Task) -> Predict:
    desk.cache.capture(task)
    [predict] = desk.cache.begin([task])
    return predict


def _told(timings: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in timings.items())
