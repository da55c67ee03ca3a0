"""Logits to one token: a request's own chain of native samplers, its own seed."""

import secrets
from collections.abc import Sequence

import numpy as np

from pinyon.engine.errors import NativeError
from pinyon.engine.native import Candidates, Logits, SamplerChain
from pinyon.engine.request import SEED_LIMIT, SamplingParams


def drawn_seed() -> int:
    return secrets.randbelow(SEED_LIMIT - 1)


class Sampler:
    """Draws the tokens of one sequence.

    `seed` is the request's, or a drawn one. `candidates` is working memory that the samplers of one thread share.
    The chain's order is llama.cpp's default: bias, penalties, top-k, typical, top-p, min-p, temperature, draw.
    """

    def __init__(
        self,
        params: SamplingParams,
        candidates: Candidates,
        vocab_size: int,
        context_tokens: int,
        prompt: Sequence[int],
    ) -> None:
        self.seed = drawn_seed() if params.seed is None else params.seed
        self._candidates = candidates
        self._chain = None if _is_plain_greedy(params) else self._build(params, vocab_size, context_tokens, prompt)

    def _build(
        self, params: SamplingParams, vocab_size: int, context_tokens: int, prompt: Sequence[int]
    ) -> SamplerChain:
        chain = SamplerChain()
        if params.logit_bias:
            chain.add_logit_bias(vocab_size, params.logit_bias)
        if _has_repeat_penalty(params):
            last = min(params.repeat_last_n, context_tokens)
            chain.add_penalties(vocab_size, last, repeat=params.repeat_penalty, history=prompt[-last:])
        if params.frequency_penalty or params.presence_penalty:
            chain.add_penalties(
                vocab_size, context_tokens, frequency=params.frequency_penalty, presence=params.presence_penalty
            )
        if params.temperature == 0:
            chain.add_greedy()
            return chain
        if params.top_k:
            chain.add_top_k(params.top_k)
        if params.typical_p < 1:
            chain.add_typical(params.typical_p)
        if params.top_p < 1:
            chain.add_top_p(params.top_p)
        if params.min_p:
            chain.add_min_p(params.min_p)
        chain.add_temperature(params.temperature)
        chain.add_draw(self.seed)
        return chain

    def choose(self, logits: Logits) -> int:
        """Return the next token for one row of logits, shape (vocabulary,).

        Raises:
            NativeError: the logits contain NaN or infinity, so the model's state is damaged.
        """
        best = int(logits.argmax())  # the first NaN, where there is one
        if not np.isfinite(logits[best]):
            raise NativeError(f"the model computed {logits[best]} instead of a probability: is the file damaged?")
        if self._chain is None:
            return best
        self._candidates.fill(logits)
        return self._chain.choose(self._candidates)

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()


def _has_repeat_penalty(params: SamplingParams) -> bool:
    return params.repeat_penalty != 1 and params.repeat_last_n > 0


def _is_plain_greedy(params: SamplingParams) -> bool:
    changes_logits = (
        params.logit_bias or _has_repeat_penalty(params) or params.frequency_penalty or params.presence_penalty
    )
    return params.temperature == 0 and not changes_logits
