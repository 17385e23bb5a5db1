"""Where a model's weights and words come from: a GGUF file with its vocabulary, or random numbers and plain bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcli.errors import BadInput
from kvcli.model.gguf.header import GgufHeader
from kvcli.model.spec import ModelSpec
from kvcli.runtime.chat import render
from kvcli.runtime.rope import check_scaling
from kvcli.runtime.tokenizer import Tokenizer
from kvcli.runtime.transformer import Transformer, runnable_decoder
from kvcli.runtime.weights import random_weights


@dataclass(frozen=True)
class Source:
    """`header` is None where there is no file; `random` takes its shape and vocabulary but not its weights."""

    spec: ModelSpec
    header: GgufHeader | None
    random: bool
    tokenizer: Tokenizer | None

    @property
    def weights(self) -> str:
        """What the weights are, for labels."""
        return "random" if self.random or self.header is None else f"of {self.header.path.name}"

    def encode(self, text: str, raw: bool) -> list[int]:
        """Token ids of a prompt: in the model's chat template, or raw. Without a vocabulary each UTF-8 byte is an id.

        Raises BadInput for an empty prompt or a template that fails.
        """
        if not text:
            raise BadInput("the prompt is empty", hint='--prompt "What is gravity?"', code="empty_prompt")
        ids = self._ids(text, raw)
        if not ids:
            raise BadInput("the vocabulary has no token for anything in the prompt", hint="write another prompt", code="empty_prompt")
        return ids

    def _ids(self, text: str, raw: bool) -> list[int]:
        if self.tokenizer is None:
            return [byte % self.spec.vocab_size for byte in text.encode()]
        template = None if raw else self.tokenizer.chat_template
        if template is None:
            return self.tokenizer.with_bos(self.tokenizer.encode(text, special=False))
        messages = [{"role": "user", "content": text}]
        rendered = render(template, messages, self.tokenizer.bos_token, self.tokenizer.eos_token)
        return self.tokenizer.with_bos(self.tokenizer.encode(rendered, special=True))

    def load(self, dtype: torch.dtype, device: torch.device, positions: int, seed: int = 0) -> Transformer:
        """The model ready to compute sequences of up to `positions` tokens."""
        decoder = runnable_decoder(self.spec)
        if self.random or self.header is None:
            weights = random_weights(self.spec, decoder, dtype, device, seed)
        else:
            from kvcli.runtime.gguf_weights import load_gguf

            weights = load_gguf(self.header, self.spec, decoder, dtype, device)
        return Transformer(self.spec, weights, positions)


def open_source(spec: ModelSpec, header: GgufHeader | None, random: bool) -> Source:
    """Checks early, before weights are read, that the model can be computed.

    Raises NotModelled for models the built-in transformer does not know, BadInput for a damaged vocabulary.
    """
    decoder = runnable_decoder(spec)
    if decoder.rope is not None:
        check_scaling(decoder.rope, has_factors=header is not None and not random)
    return Source(spec, header, random, Tokenizer(header) if header is not None else None)
