"""From the lanes of a batch to its latents, through graphs where there are any."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from comicgen.diffusion.attention import Attention
from comicgen.diffusion.conditioning import Conditioning, Lane, empty_lane, stack
from comicgen.diffusion.control import ControlNets
from comicgen.diffusion.denoiser import Denoiser
from comicgen.diffusion.graph_cache import GraphCache
from comicgen.diffusion.graph_task import Task
from comicgen.diffusion.models import Components
from comicgen.diffusion.prepared import Prepared
from comicgen.diffusion.sampling import Sampling, upload
from comicgen.diffusion.schedulers import schedule
from comicgen.diffusion.text import Embedding
from comicgen.diffusion.together import Verdicts
from comicgen.plan import Batch, Bucket, GraphKey
from comicgen.storyboard import Model


class Painter:
    """Paints latents with a model's UNet and the ControlNets that batches ask for."""

    def __init__(
        self, model: Components, empty: Embedding, attention: Attention, graphs: GraphCache
    ) -> None:
        """`empty` is the text of lanes that hold no picture."""
        self.graphs = graphs
        self._model = model
        self._empty = empty
        self._attention = attention
        self._verdicts = Verdicts()
        self._denoisers: dict[str | None, Denoiser] = {}
        self._controlnets = ControlNets(model)

    def paint(self, batch: Batch, lanes: Sequence[Lane | None], noise: Tensor) -> Sampling:
        """Begin a batch: the steps of all lanes, to be taken before the next one is begun.

        `noise` is as `draw_noise` makes it. A step waits for the device only to capture a graph.

        Raises:
            CandidateError: the ControlNet does not fit, is broken, or has changed meanwhile.
        """
        predict = self.graphs.begin(self._tasks(batch, lanes))

        def model(latents: Tensor, timestep: Tensor, step: int) -> Tensor:
            closed = batch.control is not None and not batch.control.is_open(step, batch.steps)
            return predict[closed](latents, timestep)

        scheduler = schedule(batch.sampler, self._model.folder.schedule, batch.steps)
        assert len(scheduler.timesteps) == batch.steps
        return Sampling(model, scheduler, upload(noise, self._model.device))

    def is_ready(self, batch: Batch) -> bool:
        """Whether a batch can begin with nothing to be loaded, captured or tried for it."""
        name = batch.control.model.digest if batch.control else None
        return name in self._denoisers and all(map(self.graphs.is_ready, batch.keys))

    def capture(self, key: GraphKey, controlnet: Model | None) -> None:
        """Capture a graph before a batch needs it."""
        denoiser = self._denoiser(controlnet)
        empty = denoiser.prepare(self._conditioning(key.bucket, [None] * key.bucket.batch))
        self.graphs.capture(self._task(key, denoiser, empty))

    def _tasks(self, batch: Batch, lanes: Sequence[Lane | None]) -> list[Task]:
        """One for each of the batch's graphs, in their order."""
        plain = self._denoiser(None)
        denoiser = self._denoiser(batch.control.model) if batch.control else plain
        inside = denoiser.prepare(self._conditioning(batch.bucket, lanes))
        return [
            self._task(key, denoiser, inside)
            if key.controlnet
            else self._task(key, plain, inside.without_control())
            for key in batch.keys
        ]

    def _task(self, key: GraphKey, denoiser: Denoiser, prepared: Prepared) -> Task:
        shape = key.bucket.batch, *self._model.latent_shape(key.bucket.size)
        latents = torch.empty(shape, device=self._model.device)
        return Task(key, denoiser, prepared.named(), latents)

    def _denoiser(self, controlnet: Model | None) -> Denoiser:
        name = controlnet.digest if controlnet else None
        if name not in self._denoisers:
            network = self._controlnets.get(controlnet) if controlnet else None
            made = Denoiser(self._model.unet, network, self._attention, self._verdicts)
            self._denoisers[name] = made
        return self._denoisers[name]

    def _conditioning(self, bucket: Bucket, lanes: Sequence[Lane | None]) -> Conditioning:
        empty = empty_lane(self._empty, bucket.size, bucket.controls > 0)
        return stack([lane or empty for lane in lanes], bucket.size, bucket.guided)


def ahead(batch: Batch, upcoming: Sequence[Batch], count: int) -> dict[GraphKey, Model | None]:
    """What to capture before the first batch of a run, in order, with its ControlNet.

    So many graphs: the largest, in whose memory all others fit, and the commonest. The largest
    alone where none is asked for, unless the first batch brings it anyway.
    """
    batches = [batch, *upcoming]
    uses = Counter(key for each in batches for key in each.keys)
    largest = max(uses, key=_work)
    chosen = {largest} if count or largest not in batch.keys else set()
    others = [key for key, _ in uses.most_common() if key != largest]
    chosen.update(others[: max(count - 1, 0)])
    models = {each.control.model.digest: each.control.model for each in batches if each.control}
    ordered = sorted(chosen, key=_work, reverse=True)
    return {key: models[key.controlnet] if key.controlnet else None for key in ordered}


def _work(key: GraphKey) -> int:
    """How much one replay computes, and so about how much memory it takes."""
    bucket = key.bucket
    area = bucket.size.width * bucket.size.height
    return bucket.batch * area * bucket.chunks * (1 + bucket.guided) * (1 + bucket.controls)
