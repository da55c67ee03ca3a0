"""What quantising costs a model: how a file's mix of types is called, its bits per weight, and the quality that it is known to lose."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pinyon.models.ggml_types import TYPES_BY_NAME
from pinyon.models.gguf_header import GgufHeader

FILE_TYPES: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
"""Names of `llama_ftype` (llama.h), which files have in `general.file_type`."""

LOSS_SOURCE: Final = (
    "llama.cpp, tools/perplexity/README.md, LLaMA 3 8b Scoreboard (revision f364eb6f): mean Kullback-Leibler divergence from "
    "FP16 over Wikitext-2"
)
"""Measured on Llama 3 8B. Smaller models lose more, larger ones less."""

LOSS_NATS: Final = {
    "F32": 0.0,
    "BF16": 0.00003,  # of a section of its own, on the CPU
    "F16": 0.0,
    "Q8_0": 0.001355,
    "Q6_K": 0.005452,
    "Q5_K_M": 0.010762,
    "Q5_K_S": 0.016595,
    "Q5_1": 0.018045,
    "Q5_0": 0.022239,
    "Q4_K_M": 0.031273,
    "Q4_K_S": 0.043136,
    "Q4_1": 0.071683,
    "Q4_0": 0.071940,
    "Q3_K_L": 0.087176,
    "Q3_K_M": 0.101913,
    "Q3_K_S": 0.228217,
    "Q2_K": 0.445132,
    # Made with an importance matrix, as these always are.
    "IQ4_NL": 0.035742,
    "IQ4_XS": 0.036334,
    "IQ3_M": 0.102534,
    "IQ3_S": 0.111278,
    "IQ3_XS": 0.138693,
    "IQ3_XXS": 0.183625,
    "IQ2_M": 0.325989,
    "Q2_K_S": 0.403360,
    "IQ2_S": 0.439197,
    "IQ2_XS": 0.546290,
    "IQ2_XXS": 0.812022,
    "IQ1_M": 1.393084,
    "IQ1_S": 2.254554,
}
"""Mean divergence in nats per token by file type. An importance matrix makes K-quants better than this: Q4_K_M 0.028, Q2_K 0.33."""

_GUESSED: Final = 1024
"""A flag of llama_ftype: the file does not say, a reader guessed."""
_LOSSLESS_NATS: Final = 0.0005


def mix_name(headers: Sequence[GgufHeader]) -> str:
    """Return what the files' mix of weight types is called: by their own word, else by the type of most weights."""
    said = headers[0].integer("general.file_type")
    if said is not None and not said & _GUESSED and said in FILE_TYPES:
        return FILE_TYPES[said]
    weights_of = Counter[str]()
    for header in headers:
        for tensor in header.tensors:
            weights_of[tensor.type.name] += math.prod(tensor.shape)
    return weights_of.most_common(1)[0][0] if weights_of else "no weights"


def main_type(mix: str) -> str | None:
    """Return the weight type that a mix of that name is mostly made of: Q4_K of `Q4_K_M`; None for names that do not tell."""
    names = (name for name in TYPES_BY_NAME if mix == name or mix.startswith(f"{name}_"))
    return max(names, key=len, default=None)


def bits_per_weight(headers: Sequence[GgufHeader]) -> float:
    """Return the mean over all tensors of the files, embeddings and norms included; 0 without any."""
    tensors = [tensor for header in headers for tensor in header.tensors]
    bits = sum(8 * tensor.size_bytes for tensor in tensors)
    return bits / sum(math.prod(tensor.shape) for tensor in tensors) if tensors else 0.0


def expected_loss_nats(name: str) -> float | None:
    """Return what a mix of that name was found to lose (LOSS_SOURCE); None where nobody measured it there."""
    return LOSS_NATS.get(name)


def loss_text(name: str) -> str:
    """Return the expected loss of a mix of that name as a few words."""
    nats = expected_loss_nats(name)
    if nats is None:
        return "loss not known"
    return "no loss" if nats < _LOSSLESS_NATS else f"about {nats:.1g} nats"
