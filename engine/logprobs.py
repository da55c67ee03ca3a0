"""Log probabilities of the model's own distribution, before any sampling parameter."""

from collections.abc import Callable

import numpy as np

from pinyon.engine.events import PositionLogprobs, TokenLogprob
from pinyon.engine.native import Logits


def position_logprobs(logits: Logits, chosen: int, top: int, token_bytes: Callable[[int], bytes]) -> PositionLogprobs:
    """Return the chosen token's log probability and those of the `top` likeliest, for logits of shape (vocabulary,)."""
    peak = float(logits.max())
    log_sum = peak + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))

    def entry(token: int) -> TokenLogprob:
        return TokenLogprob(token, float(logits[token]) - log_sum, token_bytes(token))

    likeliest = np.argpartition(logits, -top)[-top:] if top else np.empty(0, np.intp)
    in_order = likeliest[np.lexsort((likeliest, -logits[likeliest]))]
    return PositionLogprobs(entry(chosen), tuple(entry(int(token)) for token in in_order))
