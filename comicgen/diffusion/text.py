"""SDXL's text conditioning: a prompt as both text encoders see it, remembered per LoRA set.

Podell et al., "SDXL" (arXiv 2307.01952), section 2.1: the penultimate hidden states of both
encoders side by side, and the pooled embedding of the second.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from comicgen.diffusion.sampling import upload
from comicgen.prompts import CONTEXT, Tokenizer

REMEMBERED = 512  # embeddings; at SDXL's widths 0.3 MB each in 16 bits


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """One text: hidden states (1, 77, D1 + D2) and pooled (1, P), shared, never to be written."""

    hidden: Tensor
    pooled: Tensor


class TextEncoding:
    """Encodes one text at a time, so that its bits depend on no other text."""

    def __init__(
        self,
        tokenizers: tuple[Tokenizer, Tokenizer],
        encoders: tuple[Any, Any],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`encoders` are a CLIPTextModel and a CLIPTextModelWithProjection on `device`."""
        self._tokenizers = tokenizers
        self._encoders = encoders
        self._to: dict[str, Any] = {"device": device, "dtype": dtype}
        self._remembered: OrderedDict[tuple[str, str], Embedding] = OrderedDict()

    def encode(self, text: str, lora_key: str) -> Embedding:
        """The embedding of a text under the LoRA set that the encoders now hold.

        `lora_key` names that set; each text is encoded once under each. Text beyond 75 tokens
        is cut: `Tokenizer.first_cut` tells beforehand.
        """
        key = (text, lora_key)
        if key not in self._remembered:
            self._remembered[key] = self._encode(text)
        self._remembered.move_to_end(key)
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return self._remembered[key]

    def zeros(self) -> Embedding:
        """What stands for an absent negative where a model asks for zeros instead of ""."""
        first, second = (encoder.config for encoder in self._encoders)
        width = first.hidden_size + second.hidden_size
        return Embedding(
            torch.zeros(1, CONTEXT, width, **self._to),
            torch.zeros(1, second.projection_dim, **self._to),
        )

    @torch.no_grad()
    def _encode(self, text: str) -> Embedding:
        first, second = (
            encoder(self._ids(tokenizer, text), output_hidden_states=True)
            for tokenizer, encoder in zip(self._tokenizers, self._encoders, strict=True)
        )
        hidden = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1)
        return Embedding(hidden.to(**self._to), second.text_embeds.to(**self._to))

    def _ids(self, tokenizer: Tokenizer, text: str) -> Tensor:
        return upload(torch.tensor([tokenizer.ids(text)]), self._to["device"])
