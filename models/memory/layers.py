"""What each layer of a model keeps of what it has read, by its header: cells of keys and values, a state of one size, or both.

The rules are llama.cpp's (load_hparams and load_arch_hparams of each architecture, llama_model::create_memory). Whatever
is not told apart by the header is told apart by the architecture's name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pinyon.models.gguf_header import GgufHeader
from pinyon.models.gguf_reader import ArrayInfo


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer keeps.

    Of each token, in a cell: `key_elements` and `value_elements` numbers, of the type chosen for keys and values; no values where
    they can be computed from what stands for the keys (MLA). Of each sequence: `state_elements` numbers, always F32.
    A layer that `is_windowed` looks back over the model's window only.
    """

    key_elements: int = 0
    value_elements: int = 0
    state_elements: int = 0
    is_windowed: bool = False


@dataclass(frozen=True, slots=True)
class KeptLayers:
    """All layers in their order. `window` counts tokens, 0 where no layer has one.

    `head_elements` are the sizes of single keys and values, of which a quantised cell must hold whole blocks. What is not
    `is_exact` is an estimate: the architecture keeps something that is not counted here, or is not known.
    """

    layers: tuple[Layer, ...]
    window: int
    head_elements: tuple[int, ...]
    is_exact: bool

    @property
    def has_state(self) -> bool:
        """Whether some layers keep a state for each sequence."""
        return any(layer.state_elements for layer in self.layers)


@dataclass(frozen=True, slots=True)
class _Window:
    """How an architecture has sliding windows.

    One layer in `period` looks at everything, the last of each period, or the first one. `unstated` is the window's size where
    the file names none, `fixed` where the file's own is not used.
    """

    period: int = 0
    full_first: bool = False
    unstated: int = 0
    fixed: int = 0


_WINDOWS: Final = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, full_first=True),
    "exaone-moe": _Window(4),
    "exaone4": _Window(4, unstated=4096),
    "gemma2": _Window(2, unstated=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gemma4": _Window(),
    "gpt-oss": _Window(2),
    "granite_swa": _Window(),
    "laguna": _Window(4, full_first=True),
    "lfm2": _Window(),
    "llama4": _Window(4, unstated=8192, fixed=8192),
    "maple": _Window(),
    "mellum": _Window(4),
    "mimo2": _Window(),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, full_first=True, fixed=4096),
    "spark2_5": _Window(),
    "step35": _Window(),
}
_WINDOWED_EXAONE4_LAYERS: Final = 64
"""The same architecture with fewer layers has no windows."""

_RECURRENT: Final = {"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"}
_RECURRENT_WITHOUT_KV_HEADS: Final = {
    "bailingmoe3",
    "granitehybrid",
    "jamba",
    "kimi-k3",
    "kimi-linear",
    "lfm2",
    "lfm2moe",
    "plamo2",
}
"""Hybrids in which a layer without heads of keys and values is a recurrent one."""
_ATTENTION_INTERVALS: Final = {"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4}
"""Hybrids in which every so manieth layer has attention, where the file does not say which ones are recurrent."""
_PARALLEL: Final = {"falcon-h1"}
"""Hybrids in which each layer is both."""
_ONE_PART_A_LAYER: Final = {"nemotron_h", "nemotron_h_moe"}
"""Hybrids in which a layer is a recurrent one, or attention, or feed forward."""

_GEMMA3N_KEEPING_LAYERS: Final = 20
_KEEP_MORE: Final = {
    "deepseek4",
    "dots3note",
    "gemma4-assistant",
    "glm-dsa",
    "glm5-next",
    "graniteswitch",
    "hy_v4",
    "minimax-m3",
    "nanbeige",
    "qwen4exp",
    "t5",
}
"""Index keys, compressed copies, layers that are run several times: not counted here."""
_CACHE_OF_INDEX_KEYS: Final = {"deepseek32"}
"""Each layer keeps one more key a token, by which it finds what to look at."""


def kept_layers(header: GgufHeader) -> KeptLayers:
    """Return what each layer keeps, of a header that has passed its checks."""
    return _Reader(header).kept_layers()


class _Reader:
    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._name = header.architecture or ""
        self._count = header.block_count or 0
        self._trunk = self._count - self._number("nextn_predict_layers")
        self._heads = self._each("attention.head_count", (0,) * self._count)
        self._kv_heads = self._each("attention.head_count_kv", self._heads)

    def kept_layers(self) -> KeptLayers:
        window = self._window_tokens()
        windowed = self._windowed_layers() if window else (False,) * self._count
        recurrent = self._recurrent_layers()
        layers = tuple(
            self._layer(index, is_windowed=windowed[index], is_recurrent=recurrent[index])
            for index in range(self._count)
        )
        sizes = {
            size
            for index in range(self._count)
            for size in self._head_sizes(is_windowed=windowed[index])
            if layers[index].key_elements
        }
        return KeptLayers(layers, window, tuple(sorted(sizes)), self._name not in _KEEP_MORE)

    def _layer(self, index: int, *, is_windowed: bool, is_recurrent: bool) -> Layer:
        keys, values = 0, 0
        if self._has_cells(index, is_recurrent=is_recurrent):
            key_size, value_size = self._head_sizes(is_windowed=is_windowed)
            keys = key_size * self._kv_heads[index]
            values = 0 if self._has_latent_values() else value_size * self._kv_heads[index]
            if self._name in _CACHE_OF_INDEX_KEYS:
                keys += self._number("attention.indexer.key_length")
        has_state = is_recurrent and index < self._trunk
        return Layer(keys, values, self._state_elements() if has_state else 0, is_windowed)

    def _has_cells(self, index: int, *, is_recurrent: bool) -> bool:
        if self._name in _RECURRENT:
            return False
        if self._name in _PARALLEL:
            return True
        if self._name in _ONE_PART_A_LAYER and self._each("feed_forward_length", (0,) * self._count)[index]:
            return False
        if self._name == "gemma3n" and index >= _GEMMA3N_KEEPING_LAYERS:
            return False
        if self._name == "gemma4" and index >= self._count - self._number("attention.shared_kv_layers"):
            return False
        return not is_recurrent and index < self._trunk

    def _recurrent_layers(self) -> Sequence[bool]:
        if self._name in _RECURRENT or self._name in _PARALLEL:
            return (True,) * self._count
        if self._name in _RECURRENT_WITHOUT_KV_HEADS:
            return [heads == 0 for heads in self._kv_heads]
        if self._name in _ONE_PART_A_LAYER:
            feed_forward = self._each("feed_forward_length", (0,) * self._count)
            return [heads == 0 and wide == 0 for heads, wide in zip(self._kv_heads, feed_forward, strict=True)]
        if self._name in _ATTENTION_INTERVALS:
            interval = self._number("full_attention_interval", _ATTENTION_INTERVALS[self._name]) or self._count
            by_interval = tuple(int((index + 1) % interval != 0) for index in range(self._count))
            return [bool(value) for value in self._each("attention.recurrent_layers", by_interval)]
        return (False,) * self._count

    def _window_tokens(self) -> int:
        rule = _WINDOWS.get(self._name)
        stated = self._optional("attention.sliding_window")
        if rule is None or stated == 0 or (self._name == "exaone4" and self._count != _WINDOWED_EXAONE4_LAYERS):
            return 0
        return rule.unstated if stated is None else rule.fixed or stated

    def _windowed_layers(self) -> Sequence[bool]:
        if self._name == "lfm2":
            return [not is_recurrent for is_recurrent in self._recurrent_layers()]
        rule = _WINDOWS[self._name]
        stated = self._header.metadata.get(self._key("attention.sliding_window_pattern"))
        if isinstance(stated, ArrayInfo):
            return [bool(value) for value in self._each("attention.sliding_window_pattern", (0,) * self._count)]
        period = self._number("attention.sliding_window_pattern", rule.period)
        full = 0 if rule.full_first else period - 1
        return [index < self._trunk and (period == 0 or index % period != full) for index in range(self._count)]

    def _head_sizes(self, *, is_windowed: bool) -> tuple[int, int]:
        """Return the elements of one head's key and of its value."""
        heads = self._heads[0] if self._heads else 0
        even = (self._header.integer(self._key("embedding_length")) or 0) // heads if heads else 0
        if not heads and self._name != "plamo2":
            return 0, 0
        sizes = self._number("attention.key_length", even), self._number("attention.value_length", even)
        if not is_windowed:
            return sizes
        return self._number("attention.key_length_swa", sizes[0]), self._number("attention.value_length_swa", sizes[1])

    def _has_latent_values(self) -> bool:
        """Whether keys and values are kept as one vector from which both can be computed (multi-head latent attention)."""
        return bool(self._number("attention.key_length_mla") and self._number("attention.value_length_mla"))

    def _state_elements(self) -> int:
        """Return the convolution's and the recurrence's elements (llama_hparams::n_embd_r and n_embd_s)."""
        width, heads = self._number("embedding_length"), self._heads[0] if self._heads else 0
        if head_size := self._number("wkv.head_size"):
            return self._number("token_shift_count", 2) * width + width * head_size
        if (cached := self._number("shortconv.l_cache")) > 0:
            return width * (cached - 1)
        kernel = self._number("ssm.conv_kernel")
        if head_size := self._number("kda.head_dim"):
            return 3 * (kernel - 1 if kernel else 3) * heads * head_size + head_size * head_size * heads
        if self._name == "minimax-01":
            head_size, _ = self._head_sizes(is_windowed=False)
            return head_size * head_size * heads
        inner, state, groups = (self._number(f"ssm.{name}") for name in ("inner_size", "state_size", "group_count"))
        return max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner

    def _key(self, suffix: str) -> str:
        return f"{self._name}.{suffix}"

    def _optional(self, suffix: str) -> int | None:
        return self._header.integer(self._key(suffix))

    def _number(self, suffix: str, unstated: int = 0) -> int:
        value = self._optional(suffix)
        return unstated if value is None else value

    def _each(self, suffix: str, unstated: Sequence[int]) -> Sequence[int]:
        """Return a value for each layer, of a key that holds one for all of them or one a layer."""
        stated = self._header.metadata.get(self._key(suffix))
        if isinstance(stated, ArrayInfo) and (values := stated.integers) is not None and stated.count >= self._count:
            return values[: self._count]
        if isinstance(stated, bool | int):
            return (int(stated),) * self._count
        return unstated
