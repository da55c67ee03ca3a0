"""How fast a model would answer on this machine, from its header and what weights cost here: the file need not be there.

A step's seconds = sum over the matrices that a token goes through of their weights x the cost of a weight of that type at so many
rows, + layers x (cost of a layer + width x cost of its width). Embeddings are looked up, not multiplied, unless they are the output
layer, too; that one is computed for the rows only whose logits are wanted. Of experts each row uses some, and the more rows, the
more of them are read.

Not counted: attention over a context longer than a few hundred tokens, scans of recurrent layers, sampling. Costs are those of the
devices that they were measured with; a model that only partly fits a GPU is slower.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pinyon.models.ggml_types import TYPES_BY_NAME, GgmlType
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.gguf_reader import TensorInfo
from pinyon.models.machine.weight_speed import ROWS, WeightSpeed

CLIENTS: Final = 8
PROMPT_ROWS: Final = 512
"""Of the steps that a long prompt is computed in, as in the engine."""

MUCH_FASTER: Final = 1.5
_SIMILAR_BITS: Final = 0.15
"""How far the bits per weight of another type may be away, as a share."""
_SLOWEST_DECODE: Final = 0.9
"""What is faster in batches is no advice if it answers one client slower than this."""
_OFFERED: Final = tuple("Q8_0 Q6_K Q5_K Q5_1 Q5_0 Q4_K Q4_1 Q4_0 IQ4_NL IQ4_XS Q3_K IQ3_S Q2_K BF16 F16".split())
"""Types in which most models can be had."""

_LOOKED_UP: Final = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
_BLOCK: Final = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second with little context: one answer, a prompt, eight answers together."""

    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    batch_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class FasterType:
    """A type in which the same model would be `prefill` and `batch` times as fast."""

    name: str
    prefill: float
    batch: float


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Weights that rows are multiplied with. Of `experts` matrices of that size each row uses `used`."""

    type: GgmlType
    row_length: int
    weights: int
    experts: int = 1
    used: int = 1
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class _Model:
    layers: int
    width: int
    matrices: tuple[_Matrix, ...]

    @property
    def bits_per_weight(self) -> float:
        weights = sum(matrix.weights * matrix.experts for matrix in self.matrices)
        return sum(matrix.weights * matrix.experts * matrix.type.bits for matrix in self.matrices) / weights


def predicted_speed(headers: Sequence[GgufHeader], speed: WeightSpeed) -> Speed | None:
    """Return how fast the model of these files would be; None where one of its weight types was not measured."""
    return _speed(_model(headers), speed)


def predicted_speed_as(headers: Sequence[GgufHeader], type_name: str, speed: WeightSpeed) -> Speed | None:
    """Return how fast the same model would be with its layers' weights in another type; None where that was not measured."""
    return _speed(_retyped(_model(headers), TYPES_BY_NAME[type_name]), speed)


def much_faster_type(headers: Sequence[GgufHeader], speed: WeightSpeed) -> FasterType | None:
    """Return the type that would serve prompts and several clients best here, if it is MUCH_FASTER in one of the two than
    the file's, has about as many bits, and decodes no slower. The output layer stays as it is, as quantising tools leave it.
    """
    model = _model(headers)
    now = _speed(model, speed)
    if now is None:
        return None
    better = []
    for kind in map(TYPES_BY_NAME.__getitem__, _OFFERED):
        other = _retyped(model, kind)
        then = _speed(other, speed)
        is_alike = abs(other.bits_per_weight / model.bits_per_weight - 1) <= _SIMILAR_BITS
        if then is None or not is_alike or then.decode_tokens_per_s < _SLOWEST_DECODE * now.decode_tokens_per_s:
            continue
        prefill = then.prefill_tokens_per_s / now.prefill_tokens_per_s
        batch = then.batch_tokens_per_s / now.batch_tokens_per_s
        if max(prefill, batch) >= MUCH_FASTER:
            better.append(FasterType(kind.name, prefill, batch))
    return max(better, key=lambda faster: faster.prefill * faster.batch, default=None)


def _speed(model: _Model, speed: WeightSpeed) -> Speed | None:
    if not model.matrices or any(matrix.type.name not in speed.weight_s for matrix in model.matrices):
        return None
    return Speed(
        1 / _step_s(model, speed, rows=1, outputs=1),
        PROMPT_ROWS / _step_s(model, speed, rows=PROMPT_ROWS, outputs=1),
        CLIENTS / _step_s(model, speed, rows=CLIENTS, outputs=CLIENTS),
    )


def _step_s(model: _Model, speed: WeightSpeed, *, rows: int, outputs: int) -> float:
    layer_s = [layer + model.width * width for layer, width in zip(speed.layer_s, speed.width_s, strict=True)]
    seconds = model.layers * _at(rows, layer_s)
    for matrix in model.matrices:
        own_rows = outputs if matrix.is_output else rows
        read = matrix.experts * (1 - (1 - matrix.used / matrix.experts) ** own_rows)
        seconds += read * matrix.weights * _at(own_rows * matrix.used / read, speed.weight_s[matrix.type.name])
    return seconds


def _at(rows: float, seconds: Sequence[float]) -> float:
    """Return the seconds for any number of rows from those for ROWS: between two of these a power of it, beyond them in proportion."""
    if rows >= ROWS[-1]:
        return seconds[-1] * rows / ROWS[-1]
    left = bisect_right(ROWS, rows) - 1
    before, after = seconds[left : left + 2]
    share = math.log(rows / ROWS[left]) / math.log(ROWS[left + 1] / ROWS[left])
    return float(before * (after / before) ** share) if before else share * after


def _model(headers: Sequence[GgufHeader]) -> _Model:
    first = headers[0]
    layers = (first.block_count or 0) - (first.integer(f"{first.architecture}.nextn_predict_layers") or 0)
    experts = first.integer(f"{first.architecture}.expert_count") or 1
    used = first.integer(f"{first.architecture}.expert_used_count") or experts
    tensors = [tensor for header in headers for tensor in header.tensors]
    output = "output.weight"
    if all(tensor.name != output for tensor in tensors):
        output = "token_embd.weight"
    matrices = []
    for tensor in tensors:
        weights, is_output = math.prod(tensor.shape), tensor.name == output
        if tensor.name.endswith("exps.weight"):
            matrices.append(_Matrix(tensor.type, tensor.shape[0], weights // experts, experts, min(used, experts)))
        elif is_output or _is_multiplied(tensor, layers):
            matrices.append(_Matrix(tensor.type, tensor.shape[0], weights, is_output=is_output))
    return _Model(layers, first.integer(f"{first.architecture}.embedding_length") or 0, tuple(matrices))


def _is_multiplied(tensor: TensorInfo, layers: int) -> bool:
    """Whether every row goes through it: not what is looked up, nor norms, nor the layers that guess tokens after the next one."""
    name, _, kind = tensor.name.rpartition(".")
    block = _BLOCK.match(name)
    is_used = block is None or int(block[1]) < layers
    return is_used and kind == "weight" and name not in _LOOKED_UP and len(tensor.shape) > 1


def _retyped(model: _Model, kind: GgmlType) -> _Model:
    """Return the model with other weights in its layers, where rows can be cut into that type's blocks."""
    matrices = (
        matrix
        if matrix.is_output or matrix.type.name == "F32" or matrix.row_length % kind.block_elements
        else replace(matrix, type=kind)
        for matrix in model.matrices
    )
    return replace(model, matrices=tuple(matrices))
