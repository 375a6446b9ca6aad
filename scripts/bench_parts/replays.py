"""Graph caches by hand: a denoiser in a bucket, with inputs from a seed, replayed or not."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.attention import choose
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.graph_cache import GraphCache
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.memory import Memory
from comicgen.diffusion.prepared import Named, Prepared, invented
from comicgen.diffusion.together import Verdicts
from comicgen.engine import GraphOptions
from comicgen.plan import Bucket, GraphKey
from comicgen.sizes import Size


@dataclass(frozen=True)
class Desk:
    """A UNet, a ControlNet beside it, and a cache for them; on a GPU its stream and memory."""

    unet: Any
    controlnet: Any
    stream: Any
    cache: GraphCache
    memory: Any
    verdicts: Verdicts

    @classmethod
    def beside(cls, unet: Any, controlnet: Any) -> "Desk":
        on_gpu = unet.device.type == "cuda"
        stream: Any = torch.cuda.Stream(unet.device) if on_gpu else None
        memory = Memory(unet.device) if on_gpu else None
        cache = GraphCache(stream, memory, GraphOptions(), "any", "any")
        return cls(unet, controlnet, stream, cache, memory, Verdicts())

    def denoiser(self, controlled: bool) -> Denoiser:
        controlnet = self.controlnet if controlled else None
        return Denoiser(self.unet, controlnet, choose(self.unet), self.verdicts)

    def task(self, size: Size, batch: int, controlled: bool, seed: int = 5) -> Task:
        bucket = Bucket(batch, size, 1, int(controlled), True)
        key = GraphKey(bucket, "digest" if controlled else None, "lines" if controlled else None)
        like = {**self._like(size, batch, controlled).named(), "latents": self._latents(bucket)}
        settings = invented(like, seed)
        latents = settings.pop("latents")
        return Task(key, self.denoiser(controlled), settings, latents)

    def _latents(self, bucket: Bucket) -> Tensor:
        shape = bucket.batch, 4, bucket.size.height // 8, bucket.size.width // 8
        return torch.empty(shape, device=self.unet.device)

    def _like(self, size: Size, batch: int, controlled: bool) -> Prepared:
        config, rows = self.unet.config, 2 * batch
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        halves: dict[str, Any] = {"device": self.unet.device, "dtype": self.unet.dtype}
        floats: dict[str, Any] = {"device": self.unet.device}
        return Prepared(
            text=torch.empty(rows, 77, _text_width(self.unet), **halves),
            pooled=torch.empty(rows, pooled, **halves),
            time_ids=torch.empty(rows, 6, **floats),
            guidance=torch.empty(batch, 1, 1, 1, **floats),
            control_text=torch.empty(rows, 77, _text_width(self.controlnet), **halves)
            if controlled
            else None,
            control_hint=torch.empty(
                rows, config.block_out_channels[0], size.height // 8, size.width // 8, **halves
            )
            if controlled
            else None,
            control_weight=torch.empty(rows, 1, 1, 1, **floats) if controlled else None,
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        """On the device and stream of the cache, as the engine works."""
        with ExitStack() as place:
            place.enter_context(torch.inference_mode())
            if self.stream is not None:
                place.enter_context(torch.cuda.device(self.unet.device))
                place.enter_context(torch.cuda.stream(self.stream))
            yield

    def replayed(self, task: Task, moment: float = 500.0) -> Tensor:
        """What the graph of the task gives, captured now if need be."""
        if task.key not in self.cache.keys:
            self.cache.capture(task)
        [predict] = self.cache.begin([task])
        return predict(task.latents, self.timestep(task, moment))

    def call(self, inputs: Named, controlled: bool = False) -> Tensor:
        """What the network gives for inputs of any number of pictures."""
        return self.denoiser(controlled).call(inputs)

    def eager(self, task: Task, moment: float = 500.0) -> Tensor:
        """What the network itself gives."""
        return task.network.call(task.inputs(task.latents, self.timestep(task, moment)))

    def timestep(self, task: Task, moment: float) -> Tensor:
        return torch.full((len(task.latents),), moment, device=task.latents.device)

    def replays(self) -> int:
        """How many replays the labels tell of that were not told before."""
        return sum(getattr(event, "replays", 0) for event in self.cache.tell())


def _text_width(network: Any) -> int:
    """Of what it takes for a text: hidden states, or where it is fused keys and values."""
    keys = getattr(network, "text_keys", None)
    width: int = keys.width if keys else network.config.cross_attention_dim
    return width
