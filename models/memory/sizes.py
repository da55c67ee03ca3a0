"""What of a model decides how much memory it takes: its weights by layer, its vocabulary, the widths of its layers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pinyon.models.gguf_header import GgufHeader
from pinyon.models.gguf_reader import TOKENS_KEY, ArrayInfo, TensorInfo
from pinyon.models.memory.layers import KeptLayers, kept_layers

_MERGES_KEY: Final = "tokenizer.ggml.merges"
_BLOCK: Final = re.compile(r"blk\.(\d+)\.")
_EMBEDDING: Final = "token_embd.weight"
_OUTPUT: Final = "output.weight"
_REPACKED_ROWS: Final = 8
"""Kernels for repacked weights work on as many rows at a time."""

_LONG_GRAPH: Final = (32, 40)
_GRAPHS: Final = {
    "bailingmoe3": _LONG_GRAPH,
    "deepseek4": _LONG_GRAPH,
    "glm5-next": (64, 160),
    "hrm_text": (64, 80),
    "hy_v4": _LONG_GRAPH,
    "kimi-k3": (64, 160),
    "kimi-linear": _LONG_GRAPH,
    "minimax-01": _LONG_GRAPH,
    "minimax-m3": _LONG_GRAPH,
    "nanbeige": _LONG_GRAPH,
    "qwen35": _LONG_GRAPH,
    "qwen35moe": _LONG_GRAPH,
    "qwen3next": _LONG_GRAPH,
    "qwen4exp": _LONG_GRAPH,
}
"""Architectures whose steps have more operations than others', by tensor and by row (llama_context::graph_max_nodes)."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The bytes of one layer's tensors; `experts` are those that few of the tokens need, `repacked` those that the CPU rewrites."""

    bytes: int = 0
    experts: int = 0
    repacked: int = 0
    repacked_experts: int = 0


@dataclass(frozen=True, slots=True)
class Widths:
    """Elements of one row, the largest of all layers: what a step computes with.

    `queries` and `keys` are those of all heads together. `experts_used` times `expert_feed_forward` are computed for each token.
    `recurrence` is the inner width of recurrent layers, and `state` what one sequence has in such a layer.
    """

    embedding: int
    feed_forward: int
    queries: int
    keys: int
    experts_used: int = 0
    expert_feed_forward: int = 0
    recurrence: int = 0
    state: int = 0


@dataclass(frozen=True, slots=True)
class GraphSize:
    """Of how many operations llama.cpp expects a step to consist: so many for each tensor, or for each row if that is more."""

    tensors: int
    for_each_tensor: int = 8
    for_each_row: int = 0


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A model by its headers. `input_bytes` is the table of embeddings, `output_bytes` the last layer; where that is the same
    table, `output_bytes` counts what a second copy takes if it is made.
    """

    kept: KeptLayers
    widths: Widths
    layers: tuple[LayerWeights, ...]
    input_bytes: int
    output_bytes: int
    repacked_output_bytes: int
    is_tied: bool
    vocabulary: int
    merges: int
    trained_context: int
    graph: GraphSize

    @property
    def weights_bytes(self) -> int:
        """All tensors that are loaded, each once."""
        own = self.output_bytes - (self.input_bytes if self.is_tied else 0)
        return self.input_bytes + own + sum(layer.bytes for layer in self.layers)


def with_weights(sizes: ModelSizes, weights_bytes: int) -> ModelSizes:
    """Return the sizes of the same model in another quantisation, of which only the bytes of all weights are known."""
    share = weights_bytes / sizes.weights_bytes

    def scaled(size: int) -> int:
        return round(size * share)

    return replace(
        sizes,
        layers=tuple(
            LayerWeights(scaled(each.bytes), scaled(each.experts), scaled(each.repacked), scaled(each.repacked_experts))
            for each in sizes.layers
        ),
        input_bytes=scaled(sizes.input_bytes),
        output_bytes=scaled(sizes.output_bytes),
        repacked_output_bytes=scaled(sizes.repacked_output_bytes),
    )


def model_sizes(headers: Sequence[GgufHeader], repacked_types: frozenset[str] = frozenset()) -> ModelSizes:
    """Return the sizes of a model of one or several files, the one with the metadata first.

    `repacked_types` are the names of the weight types that this machine's CPU keeps in another order.
    """
    header = headers[0]
    tensors = [tensor for each in headers for tensor in each.tensors]
    kept = kept_layers(header)
    blocks = [LayerWeights() for _ in kept.layers]
    head_bytes = repacked_head = input_bytes = 0
    for tensor in tensors:
        repacked = tensor.size_bytes if _is_repacked(tensor, repacked_types) else 0
        found = _BLOCK.match(tensor.name)
        if found is not None and int(found[1]) < len(blocks):
            blocks[int(found[1])] = _with(blocks[int(found[1])], tensor, repacked)
        elif tensor.name == _EMBEDDING:
            input_bytes = tensor.size_bytes
        else:
            head_bytes += tensor.size_bytes
            repacked_head += repacked
    embedding = next((tensor for tensor in tensors if tensor.name == _EMBEDDING), None)
    is_tied = all(tensor.name != _OUTPUT for tensor in tensors)
    if is_tied and embedding is not None:
        head_bytes += embedding.size_bytes
        repacked_head += embedding.size_bytes if _is_repacked(embedding, repacked_types) else 0
    trunk = len(blocks) - _number(header, "nextn_predict_layers")
    return ModelSizes(
        kept=kept,
        widths=_widths(header, kept),
        layers=tuple(block if index < trunk else LayerWeights() for index, block in enumerate(blocks)),
        input_bytes=input_bytes,
        output_bytes=head_bytes,
        repacked_output_bytes=repacked_head,
        is_tied=is_tied,
        vocabulary=_count(header, TOKENS_KEY),
        merges=_count(header, _MERGES_KEY),
        trained_context=header.context_length or 0,
        graph=GraphSize(len(tensors), *_GRAPHS.get(header.architecture or "", (8, 0))),
    )


def _with(layer: LayerWeights, tensor: TensorInfo, repacked: int) -> LayerWeights:
    is_expert = "_exps" in tensor.name
    return LayerWeights(
        layer.bytes + tensor.size_bytes,
        layer.experts + (tensor.size_bytes if is_expert else 0),
        layer.repacked + repacked,
        layer.repacked_experts + (repacked if is_expert else 0),
    )


def _is_repacked(tensor: TensorInfo, types: frozenset[str]) -> bool:
    """Whether the CPU keeps a matrix in another order (ggml_repack_get_optimal_repack_type)."""
    return (
        tensor.type.name in types
        and len(tensor.shape) > 1
        and tensor.shape[1] > 1
        and tensor.shape[1] % _REPACKED_ROWS == 0
    )


def _widths(header: GgufHeader, kept: KeptLayers) -> Widths:
    heads = _largest(header, "attention.head_count")
    head = max(kept.head_elements, default=0)
    return Widths(
        embedding=_number(header, "embedding_length"),
        feed_forward=_largest(header, "feed_forward_length"),
        queries=heads * head,
        keys=max((layer.key_elements for layer in kept.layers), default=0),
        experts_used=_largest(header, "expert_used_count"),
        expert_feed_forward=_largest(header, "expert_feed_forward_length"),
        recurrence=_number(header, "ssm.inner_size"),
        state=max((layer.state_elements for layer in kept.layers), default=0),
    )


def _number(header: GgufHeader, suffix: str) -> int:
    return header.integer(f"{header.architecture}.{suffix}") or 0


def _largest(header: GgufHeader, suffix: str) -> int:
    value = header.metadata.get(f"{header.architecture}.{suffix}")
    if isinstance(value, ArrayInfo):
        return max(value.integers or (0,))
    return _number(header, suffix)


def _count(header: GgufHeader, key: str) -> int:
    value = header.metadata.get(key)
    return value.count if isinstance(value, ArrayInfo) else 0
