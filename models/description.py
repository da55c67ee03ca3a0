"""What a model's headers say about it, in values that can be shown and written as JSON."""

from collections.abc import Mapping
from enum import StrEnum
from math import prod
from typing import Final, TypeAlias

import msgspec

from pinyon.models.gguf_header import GgufHeader
from pinyon.models.gguf_reader import TOKENS_KEY, ArrayInfo
from pinyon.models.memory.kv import KvType, bytes_per_token, possible_types
from pinyon.models.memory.layers import kept_layers


class TensorGroup(StrEnum):
    """What tensors are for, going by the names that llama.cpp knows (LLM_TENSOR_NAMES, llama-arch.cpp)."""

    EMBEDDINGS = "embeddings"
    ATTENTION = "attention"
    FEED_FORWARD = "feed forward"
    EXPERTS = "experts"
    RECURRENT = "recurrent"
    NORMS = "norms"
    OUTPUT = "output"
    OTHER = "other"


class TypeShare(msgspec.Struct, frozen=True):
    """The tensors of a group that are stored as one type."""

    type: str
    tensors: int
    parameters: int
    size_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size_bytes / self.parameters


class GroupMix(msgspec.Struct, frozen=True):
    """A group of tensors; its types by the bytes they take, most first."""

    group: TensorGroup
    types: tuple[TypeShare, ...]

    @property
    def whole(self) -> TypeShare:
        return _sum(" + ".join(share.type for share in self.types), self.types)


class ArrayShown(msgspec.Struct, frozen=True):
    """An array too long to keep, or of strings."""

    type: str
    count: int


Shown: TypeAlias = str | int | float | bool | tuple[int, ...] | tuple[float, ...] | ArrayShown


class Description(msgspec.Struct, frozen=True):
    """A model by its headers. None is not said there; texts are the file's own, with whatever characters it has.

    `kv_bytes_per_token` is what a token of context takes with each type of KV that the model can have.
    """

    architecture: str | None
    title: str | None
    license: str | None
    parameters: int
    tensor_bytes: int
    bits_per_weight: float
    context_tokens: int | None
    kv_bytes_per_token: Mapping[KvType, int]
    vocabulary: int | None
    tokenizer: str | None
    chat_template: str | None
    groups: tuple[GroupMix, ...]
    metadata: Mapping[str, Shown]


def describe(headers: tuple[GgufHeader, ...]) -> Description:
    """Describe a model by all its headers, of which the first has the metadata."""
    first = headers[0]
    groups = quant_mix(headers)
    whole = _sum("", tuple(group.whole for group in groups))
    tokens = first.metadata.get(TOKENS_KEY)
    kept = kept_layers(first)
    return Description(
        architecture=first.architecture,
        title=first.name,
        license=_license(first),
        parameters=whole.parameters,
        tensor_bytes=whole.size_bytes,
        bits_per_weight=whole.bits_per_weight,
        context_tokens=first.context_length,
        kv_bytes_per_token={kind: bytes_per_token(kept, kind) for kind in possible_types(kept)},
        vocabulary=tokens.count if isinstance(tokens, ArrayInfo) else None,
        tokenizer=_joined(first.text("tokenizer.ggml.model"), first.text("tokenizer.ggml.pre")),
        chat_template=first.chat_template,
        groups=groups,
        metadata={key: _shown(value) for key, value in first.metadata.items()},
    )


def quant_mix(headers: tuple[GgufHeader, ...]) -> tuple[GroupMix, ...]:
    """How the tensors of each group are stored; groups without a tensor are left out."""
    shares: dict[TensorGroup, dict[str, TypeShare]] = {group: {} for group in TensorGroup}
    for tensor in (tensor for header in headers for tensor in header.tensors):
        types = shares[group_of(tensor.name)]
        one = TypeShare(tensor.type.name, 1, prod(tensor.shape), tensor.size_bytes)
        types[one.type] = _sum(one.type, (one, types[one.type])) if one.type in types else one
    return tuple(
        GroupMix(group, tuple(sorted(types.values(), key=lambda share: -share.size_bytes)))
        for group, types in shares.items()
        if types
    )


_PLACES: Final = (
    ("norm", TensorGroup.NORMS),
    ("token_embd", TensorGroup.EMBEDDINGS),
    ("position_embd", TensorGroup.EMBEDDINGS),
    ("token_types", TensorGroup.EMBEDDINGS),
    ("exp", TensorGroup.EXPERTS),  # ffn_gate_exps, ffn_down_shexp, exp_probs_b
    ("ffn_gate_inp", TensorGroup.EXPERTS),  # chooses them
    ("ssm_", TensorGroup.RECURRENT),
    ("time_mix", TensorGroup.RECURRENT),
    ("shortconv", TensorGroup.RECURRENT),
    ("attn", TensorGroup.ATTENTION),
    ("ffn", TensorGroup.FEED_FORWARD),
    ("channel_mix", TensorGroup.FEED_FORWARD),
)
"""The first part that a name holds decides."""


def group_of(tensor: str) -> TensorGroup:
    """The group of a tensor by its name, such as `blk.0.attn_q.weight`."""
    for part, group in _PLACES:
        if part in tensor:
            return group
    return TensorGroup.OUTPUT if tensor.startswith("output") else TensorGroup.OTHER


def _sum(name: str, shares: tuple[TypeShare, ...]) -> TypeShare:
    return TypeShare(
        name,
        sum(share.tensors for share in shares),
        sum(share.parameters for share in shares),
        sum(share.size_bytes for share in shares),
    )


def _license(header: GgufHeader) -> str | None:
    name = header.text("general.license.name") or header.text("general.license")
    return _joined(name, header.text("general.license.link"))


def _joined(*texts: str | None) -> str | None:
    return ", ".join(text for text in texts if text) or None


def _shown(value: object) -> Shown:
    if isinstance(value, ArrayInfo):
        return value.values if value.values is not None else ArrayShown(value.element_type.name, value.count)
    assert isinstance(value, str | int | float)
    return value
