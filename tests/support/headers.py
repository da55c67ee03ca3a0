"""Headers of models that nobody has to write to a file."""

import math
from collections.abc import Mapping

from pinyon.models.ggml_types import TYPES_BY_NAME
from pinyon.models.gguf_header import GgufHeader
from pinyon.models.gguf_reader import TensorInfo


def header_of(tensors: Mapping[str, tuple[str, tuple[int, ...]]], **metadata: object) -> GgufHeader:
    """A header with these tensors (type and shape by name) and these values, of the architecture llama."""
    values = {"general.architecture": "llama", **{name.replace("__", "."): value for name, value in metadata.items()}}
    return GgufHeader(3, values, tuple(_tensor(name, *described) for name, described in tensors.items()), 0, 32, 0)


def _tensor(name: str, type_name: str, shape: tuple[int, ...]) -> TensorInfo:
    kind = TYPES_BY_NAME[type_name]
    return TensorInfo(name, shape, kind, 0, math.prod(shape) // kind.block_elements * kind.block_bytes)
