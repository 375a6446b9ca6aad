"""The pieces that a picture is made of, each alone; no floor."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from diffusers import ControlNetModel
from torch import Tensor

from bench_parts import stories
from bench_parts.setting import Setting, say
from bench_parts.theirs import Diffusers
from bench_parts.timing import in_turn, timed
from comicgen.diffusion.attention import Attention, choose
from comicgen.diffusion.conditioning import empty_lane, stack
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.graph_cache import GraphCache
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.lora import LoraWeights, read_changes
from comicgen.diffusion.memory import Memory
from comicgen.diffusion.models import Components, load_controlnet, load_model
from comicgen.diffusion.prepared import invented
from comicgen.diffusion.text import Embedding
from comicgen.plan import Bucket, GraphKey
from comicgen.storyboard import in_order

ROUNDS = 5
COUNTS = (1, 2, 4, 8, 16)
BACKENDS = ("cudnn", "flash", "efficient", "math")
HEADS = ((10, 4), (20, 2))
"""Of SDXL's self-attention: how many, and in which fraction of the latents' edges; 64 wide."""


def measure(setting: Setting) -> dict[str, Any]:
    """A step for each number of pictures, a decode, a switch of LoRAs, and attention."""
    with torch.inference_mode():
        bench = _Bench.of(setting)
        steps = [bench.step(count, control) for control in (False, True) for count in COUNTS]
        return {
            "steps": steps,
            "decode": bench.decode(),
            "LoRA": bench.switches(),
            "attention": bench.attention(),
            "met": True,
        }


@dataclass(frozen=True)
class _Bench:
    """diffusers' own modules, and comicgen's."""

    setting: Setting
    diffusers: Any
    ours: Components
    controlnets: tuple[Any, Any]
    cache: GraphCache
    stream: torch.cuda.Stream | None

    @classmethod
    def of(cls, setting: Setting) -> "_Bench":
        pipe, ours = (
            Diffusers(setting).pipe,
            load_model(setting.parts.model, setting.device, setting.dtype),
        )
        theirs: Any = ControlNetModel.from_pretrained(setting.parts.controlnet, dtype=setting.dtype)
        controlnets = theirs.to(setting.device), load_controlnet(setting.parts.controlnet, ours)
        on_gpu = setting.environment.on_gpu
        stream: Any = torch.cuda.Stream(setting.device) if on_gpu else None
        memory = Memory(setting.device) if on_gpu else None
        name = choose(ours.unet).name
        return cls(
            setting, pipe, ours, controlnets, GraphCache(stream, memory, name, False), stream
        )

    def step(self, count: int, controlled: bool) -> dict[str, Any]:
        """Milliseconds of a step with guidance, called and replayed.

        Until it is captured a graph costs three calls, the capture and two replays.
        """
        networks = zip((self.diffusers.unet, self.ours.unet), self.controlnets, strict=True)
        attention = choose(self.ours.unet)
        plain, lean = (
            Denoiser(unet, controlnet if controlled else None, attention)
            for unet, controlnet in networks
        )
        inputs = self._inputs(lean, count, controlled)
        arms: dict[str, Callable[[], Tensor]] = {
            "diffusers' modules": lambda: plain.call(inputs),
            "ours": lambda: lean.call(inputs),
        }
        with self._working():
            captured = {}
            if self.stream:
                seconds, arms["replayed"] = timed(
                    lambda: self._captured(lean, inputs, count, controlled), self.setting.device
                )
                captured["seconds until captured"] = round(seconds, 3)
            timings = self._in_turn(arms)
            self.cache.clear()
        say(f"pieces   step {count:2}{', control' * controlled:9} {_told(timings)}")
        return {"pictures": count, "control": controlled, **timings, **captured}

    def _captured(
        self, denoiser: Denoiser, inputs: Mapping[str, Tensor], count: int, controlled: bool
    ) -> Callable[[], Tensor]:
        bucket = Bucket(count, self.setting.size, 1, int(controlled), True)
        key = GraphKey(bucket, *(("digest", "control") if controlled else (None, None)))
        settings = {**inputs}
        step = settings.pop("latents"), settings.pop("timestep")
        task = Task(key, denoiser, settings, step[0])
        self.cache.capture(task)
        [predict] = self.cache.begin([task])
        return lambda: predict(*step)

    def _inputs(self, denoiser: Denoiser, count: int, controlled: bool) -> dict[str, Tensor]:
        config, size = self.ours.unet.config, self.setting.size
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        to: Any = {"device": self.setting.device, "dtype": self.setting.dtype}
        text = Embedding(
            torch.zeros(1, 77, config.cross_attention_dim, **to), torch.zeros(1, pooled, **to)
        )
        lanes = [empty_lane(text, size, controlled)] * count
        settings = denoiser.prepare(stack(lanes, size, guided=True)).named()
        latents = torch.empty(count, *self.ours.latent_shape(size), device=self.setting.device)
        timestep = torch.empty(count, device=self.setting.device)
        return invented({**settings, "latents": latents, "timestep": timestep}, seed=1)

    def decode(self) -> dict[str, Any]:
        """Milliseconds from one picture's latents to its pixels."""
        latents = torch.randn(
            1, *self.ours.latent_shape(self.setting.size), device=self.setting.device
        ).to(self.setting.dtype)
        vaes = {"diffusers' modules": self.diffusers.vae, "ours": self.ours.vae}
        with self._working():
            timings = self._in_turn(
                {
                    name: lambda vae=vae: vae.decode(latents, return_dict=False)[0]
                    for name, vae in vaes.items()
                }
            )
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

        with self._working():
            timings = self._in_turn({"read": read_all, "switch": switch}, len(loras))
            weights.set([])
        say(f"pieces   LoRA            {_told(timings)}")
        return timings

    def attention(self) -> list[dict[str, Any]]:
        """Milliseconds of the self-attention of a guided batch of four, by each backend."""
        found = []
        for heads, fraction in HEADS:
            _, height, width = self.ours.latent_shape(self.setting.size)
            tokens = (height // fraction) * (width // fraction)
            some = torch.randn(8, heads, tokens, 64, device=self.setting.device)
            query = some.to(self.setting.dtype)

            def attend(name: str, query: Tensor = query) -> Tensor:
                with Attention(name).kernels():
                    return F.scaled_dot_product_attention(query, query, query)

            timings = self._in_turn({name: lambda name=name: attend(name) for name in BACKENDS})
            say(f"pieces   attention {heads:2}x{tokens:<6}{_told(timings)}")
            found.append({"heads": heads, "tokens": tokens, **timings})
        return found

    def _in_turn(self, arms: Mapping[str, Callable[[], Any]], share: int = 1) -> dict[str, float]:
        """Median milliseconds of each arm, after a round to warm up."""
        device = self.setting.device
        in_turn(arms, 1, device)
        timings = in_turn(arms, self.setting.rounds or ROUNDS, device)
        return {name: round(1e3 * each.median / share, 3) for name, each in timings.items()}

    @contextmanager
    def _working(self) -> Iterator[None]:
        """On the stream of the graphs, if there are any."""
        if self.stream is None:
            yield
        else:
            with torch.cuda.stream(self.stream):
                yield


def _told(timings: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in timings.items())
