"""The only importer of llama_cpp: typed handles over llama.cpp's C API, freed in order, errors with the native log's words.

Ownership: a Context keeps its Model alive and is freed before it; a SamplerChain owns the samplers added to it. Handles
belong to the engine thread, except Vocabulary, which only reads immutable data and serves any thread.
"""

import ctypes
import inspect
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TextIO, TypeAlias

import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

from pinyon.engine.config import ALL_LAYERS, Buffer, KvType
from pinyon.engine.device import Device, DeviceKind
from pinyon.engine.errors import BindingError, DoesNotFitError, ModelLoadError, NativeError
from pinyon.engine.meters import Vram

if TYPE_CHECKING:
    from llguidance import LLTokenizer

PINNED_VERSION: Final = "0.3.36"

_DEVICE_FUNCTIONS: Final = (
    ("ggml_backend_dev_count", ctypes.c_size_t),
    ("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t),
    ("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p),
    ("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p),
    ("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p),
    (
        "ggml_backend_dev_memory",
        None,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_size_t),
    ),
)
"""Functions of ggml-backend.h: name, type of the result, types of the arguments."""

Logits: TypeAlias = NDArray[np.float32]
"""Shape (rows, vocabulary), or (vocabulary,) for one row. A view of native memory, valid until the next decode."""


def check_binding() -> str:
    """Check that the installed llama-cpp-python is the one this file is written for; return the native build's name.

    Raises:
        BindingError: the version differs, or a symbol that this file uses is missing.
    """
    used = set(re.findall(r"\blib\.(\w+)", inspect.getsource(sys.modules[__name__])))
    missing = sorted(name for name in used if not hasattr(lib, name))
    found = version("llama-cpp-python")
    if missing or found != PINNED_VERSION:
        detail = f", without {', '.join(missing)}" if missing else ""
        raise BindingError(
            f"Pinyon is written for llama-cpp-python {PINNED_VERSION} and found {found}{detail}: "
            f"run `pip install llama-cpp-python=={PINNED_VERSION}`"
        )
    return f"llama-cpp-python {found}, llama.cpp {lib.llama_version().decode()}"


def shown(path: Path) -> str:
    """Return a path as text for messages; names on Linux are bytes and need not be UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


class NativeLog:
    """Sends llama.cpp's log to a stream, less what only its developers want to know, and remembers its last warnings and errors.

    Create it before any model.
    """

    _DEBUG, _WARNING, _CONTINUED = 1, 3, 5
    _BUFFER = re.compile(r" (\S+) +(model|KV|RS|compute|output) +buffer size = +([\d.]+) MiB")
    _installed: ClassVar["NativeLog"]

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._recent: deque[str] = deque(maxlen=20)
        self._level = 0
        self.buffers: list[Buffer] = []
        """What was taken of memory until now."""
        self._callback = lib.llama_log_callback(self._write)
        lib.llama_log_set(self._callback, None)
        NativeLog._installed = self  # native code holds no reference of its own

    def _write(self, level: int, text: bytes, _user_data: object) -> None:
        line = text.decode("utf-8", "replace")
        if level != self._CONTINUED:
            self._level = level
        if self._level >= self._WARNING and line.strip():
            self._recent.append(line.strip())
        if (found := self._BUFFER.search(line)) is not None:
            place, purpose, mib = found.groups()
            self.buffers.append(Buffer(purpose, place, round(float(mib) * (1 << 20))))
        if self._level != self._DEBUG:
            self._stream.write(line)

    def reason(self) -> str:
        """Return the last complaints in one line, without the names of C functions, and forget them."""
        lines = [re.sub(r"^\w+: ", "", line) for line in self._recent]
        self._recent.clear()
        return "; ".join(dict.fromkeys(lines)) or "llama.cpp gave no reason"


def backend_devices(ggml: ctypes.CDLL = lib._lib) -> tuple[Device, ...]:  # noqa: SLF001  the binding has no functions for devices
    """Return every device that ggml has a backend for. Being asked for the first time, it starts their drivers."""
    if not hasattr(ggml, "ggml_backend_dev_count"):  # Windows does not look into the libraries that this one needs
        return ()
    for name, result, *arguments in _DEVICE_FUNCTIONS:
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    return tuple(_device(ggml, ggml.ggml_backend_dev_get(index)) for index in range(ggml.ggml_backend_dev_count()))


def _device(ggml: ctypes.CDLL, handle: int) -> Device:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name=ggml.ggml_backend_dev_name(handle).decode("utf-8", "replace"),
        description=ggml.ggml_backend_dev_description(handle).decode("utf-8", "replace"),
        kind=DeviceKind(ggml.ggml_backend_dev_type(handle)),
        free_bytes=free.value,
        total_bytes=total.value,
    )


def video_memory() -> tuple[Vram, ...]:
    """Return what all programs together use of the devices that are GPUs."""
    return tuple(
        Vram(device.name, device.total_bytes - device.free_bytes, device.total_bytes)
        for device in backend_devices()
        if device.kind.is_gpu
    )


class _TensorRule(ctypes.Structure):
    """llama_model_tensor_buft_override, which the binding lacks: where tensors go whose names match."""

    _fields_: ClassVar = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def _computes_in_tiles() -> bool:
    """Whether llama.cpp was compiled for Intel's AMX. It would copy weights of nearly every type for that, which no memory plan counts,
    and dies at its first step where GCC before 14 compiled it (its PR114098).
    """
    return b"AMX_INT8 = 1" in lib.llama_print_system_info()


def _experts_in_ram(layers: int) -> ctypes.Array[_TensorRule]:
    """Return the rule by which the experts of the first `layers` layers stay in RAM; an empty one ends the list."""
    buffer_type = lib._lib.ggml_backend_cpu_buffer_type  # noqa: SLF001  the binding has no functions for buffers
    buffer_type.restype = ctypes.c_void_p
    numbers = "|".join(map(str, range(layers)))
    pattern = rf"blk\.({numbers})\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    return (_TensorRule * 2)(_TensorRule(pattern.encode(), buffer_type()))


class Model:
    """Loaded weights and vocabulary.

    `on_progress` is called with 0..1 while loading; when it returns False the load stops with ModelLoadError. The last
    `gpu_layers` layers go to GPUs where there are any; of the first `cpu_expert_layers` layers the experts stay in RAM.
    """

    def __init__(
        self,
        path: Path,
        log: NativeLog,
        on_progress: Callable[[float], bool],
        *,
        gpu_layers: int = ALL_LAYERS,
        cpu_expert_layers: int = 0,
    ) -> None:
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = not _computes_in_tiles()
        rules = _experts_in_ram(cpu_expert_layers) if cpu_expert_layers else None
        if rules is not None:
            params.tensor_buft_overrides = ctypes.addressof(rules)
        params.progress_callback = lib.llama_progress_callback(lambda progress, _user_data: on_progress(progress))
        lib.llama_backend_init()
        self._handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self._handle:
            raise ModelLoadError(f"cannot load {shown(path)}: {log.reason()}")
        self.vocabulary = Vocabulary(self)

    @property
    def handle(self) -> int:
        if not self._handle:
            raise NativeError("the model was closed")
        return int(self._handle)

    @property
    def trained_context(self) -> int:
        return int(lib.llama_model_n_ctx_train(self.handle))

    @property
    def generates_text(self) -> bool:
        """False for embedding models, encoder-decoder models and diffusion models."""
        return (
            lib.llama_model_has_decoder(self.handle)
            and not lib.llama_model_has_encoder(self.handle)
            and not lib.llama_model_is_diffusion(self.handle)
        )

    @property
    def window(self) -> int:
        """How many tokens back the layers with a sliding window look; 0 where there is none."""
        return int(lib.llama_model_n_swa(self.handle))

    @property
    def keeps_state_per_sequence(self) -> bool:
        """Recurrent and hybrid models allocate a full state for every sequence id."""
        return bool(lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle))

    def metadata(self, key: str) -> str | None:
        """Return a metadata value as llama.cpp prints it, or None; at most 255 bytes."""
        buffer = ctypes.create_string_buffer(256)
        if lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer)) < 0:
            return None
        return buffer.value.decode("utf-8", "replace")

    def chat_template(self) -> str | None:
        """Return the source of the file's default chat template."""
        template = lib.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else None

    def close(self) -> None:
        if self._handle:
            lib.llama_model_free(self._handle)
            self._handle = None


class SpecialTokens(NamedTuple):
    """Ids of tokens that are not made by merging: `control` only where special tokens are parsed."""

    control: list[int]
    user_defined: list[int]


class Vocabulary:
    """Token ids, their bytes and attributes. Reads only: callable from any thread while the model lives."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._handle = lib.llama_model_get_vocab(model.handle)
        self.size = int(lib.llama_vocab_n_tokens(self._handle))
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._handle))
        self.bos = self._optional(lib.llama_vocab_bos(self._handle))
        self.eos = self._optional(lib.llama_vocab_eos(self._handle))

    @staticmethod
    def _optional(token: int) -> int | None:
        return token if token >= 0 else None

    def is_eog(self, token: int) -> bool:
        """Whether the token ends generation: end of sequence, of turn, of message, whatever the model calls it."""
        return bool(lib.llama_vocab_is_eog(self._handle, token))

    def special_tokens(self) -> SpecialTokens:
        """Return the tokens whose text is matched before any merging. Walks the vocabulary: 0.1 s for 150,000 tokens."""
        control = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        user_defined = lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        attributes = np.fromiter(map(lib.llama_vocab_get_attr, repeat(self._handle), range(self.size)), np.int32)
        return SpecialTokens(
            control=np.flatnonzero(attributes & control).tolist(),
            user_defined=np.flatnonzero(attributes & user_defined).tolist(),
        )

    def text(self, token: int) -> bytes:
        """Return the token's text as it stands in the file."""
        return bytes(lib.llama_vocab_get_text(self._handle, token))

    def piece(self, token: int) -> bytes:
        """Return the bytes that the token adds to visible text; none for control tokens."""
        buffer = ctypes.create_string_buffer(64)
        length = lib.llama_token_to_piece(self._handle, token, buffer, len(buffer), 0, False)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = lib.llama_token_to_piece(self._handle, token, buffer, len(buffer), 0, False)
        return buffer.raw[:length]

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        """Return the token ids of UTF-8 text, without adding BOS or EOS.

        Raises:
            NativeError: the text is too long for a 32-bit token count.
        """
        room = len(text) + 16
        while True:
            tokens = (lib.llama_token * room)()
            count = lib.llama_tokenize(self._handle, text, len(text), tokens, room, False, parse_special)
            if count >= 0:
                return tokens[:count]
            if -count <= room:
                raise NativeError(f"a text of {len(text):,} bytes cannot be tokenised")
            room = -count

    def llguidance_tokenizer(self, eog: Sequence[int]) -> "LLTokenizer":
        """Return this vocabulary for llguidance, which keeps a pointer into the model. Takes 0.2 s for 50,000 tokens."""
        from llguidance import LLTokenizer  # noqa: PLC0415  a worker without grammars does not pay for it

        special = self.special_tokens()
        tags = {token for token in special.user_defined if re.fullmatch(rb"<.*>", self.text(token), re.DOTALL)}
        # 0xff marks tokens that a grammar must not reach through their spelling.
        hidden = tags.union(special.control)
        return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined, no-any-return]  # missing in its stubs
            tokens=[b"\xff" + self.text(i) if i in hidden else self.piece(i) for i in range(self.size)],
            vocab_ptr=self._handle,
            tokenize_fptr=ctypes.cast(lib.llama_tokenize, ctypes.c_void_p).value,
            eos_token=list(eog),
        )


class RowBuffer:
    """Rows for one decode, in memory that numpy owns: (token, position, sequence ids, wants logits) per row.

    `sequence_ids` has the shape (capacity, ids_per_row).
    """

    def __init__(self, capacity: int, ids_per_row: int = 1) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.sequence_ids = np.zeros((capacity, ids_per_row), np.int32)
        self.wants_logits = np.zeros(capacity, np.int8)
        self._ids_per_row = np.full(capacity, ids_per_row, np.int32)
        first, stride = self.sequence_ids.ctypes.data, self.sequence_ids.strides[0]
        self._id_pointers = np.arange(first, first + capacity * stride, stride, dtype=np.uintp)
        self.native = lib.llama_batch()
        for name, array in (
            ("token", self.tokens),
            ("pos", self.positions),
            ("n_seq_id", self._ids_per_row),
            ("seq_id", self._id_pointers),
            ("logits", self.wants_logits),
        ):
            # A pointer field is an address: it is set in place, since its ctypes type differs from field to field.
            offset = getattr(lib.llama_batch, name).offset
            ctypes.c_void_p.from_buffer(self.native, offset).value = array.ctypes.data

    @property
    def capacity(self) -> int:
        return len(self.tokens)


_GGML_TYPES: Final[dict[KvType, int]] = {"f16": 1, "q8_0": 8, "q4_0": 2}
"""enum ggml_type."""
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_HEADER_BYTES: Final = 8
"""Of an exported state: two 32-bit numbers."""


class Context:
    """KV cells and compute buffers of one model.

    `cells` is the room for tokens of all sequences together; a batch holds up to `batch_rows` rows. There are `sequence_ids`
    ids, from 0, and as many rows of a batch may want logits. Without `full_window`, layers with a sliding window keep the cells
    inside of it only.
    """

    def __init__(
        self,
        model: Model,
        log: NativeLog,
        *,
        cells: int,
        sequence_ids: int,
        batch_rows: int,
        threads: int,
        full_window: bool = True,
        kv_type: KvType = "f16",
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = batch_rows
        params.n_seq_max = params.n_outputs_max = sequence_ids
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.swa_full = full_window
        params.type_k = params.type_v = _GGML_TYPES[kv_type]
        self._model = model
        self._params = params
        self._vocabulary_size = model.vocabulary.size
        self._handle = lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise DoesNotFitError(f"cannot make a context of {cells:,} tokens: {log.reason()}")
        self._memory = lib.llama_get_memory(self._handle)
        self._log = log

    def decode(self, buffer: RowBuffer, rows: int) -> None:
        """Compute the first `rows` rows of the buffer; return when that is done.

        Raises:
            NativeError: llama.cpp refused the rows; the sequences in them must be given up.
        """
        buffer.native.n_tokens = rows
        status = lib.llama_decode(self._handle, buffer.native)
        if status != 0:
            raise NativeError(f"llama_decode returned {status} for {rows} rows: {self._log.reason()}")
        lib.llama_synchronize(self._handle)

    def logits(self, outputs: int) -> Logits:
        """Return the logits of the last decode's rows that wanted them, in batch order."""
        pointer = lib.llama_get_logits(self._handle)
        if not pointer:
            raise NativeError(f"llama.cpp has no logits for {outputs} rows: {self._log.reason()}")
        return np.ctypeslib.as_array(pointer, (outputs, self._vocabulary_size))

    @property
    def kv_settings(self) -> tuple[str, ...]:
        """What, beside the weights, decides which bytes the KV of given tokens has. RoPE is the model's own, or stretched for a
        context beyond the one that the model was first trained for, where its file says so.
        """
        architecture = self._model.metadata("general.architecture")
        original = self._model.metadata(f"{architecture}.rope.scaling.original_context_length")
        params = self._params
        stretched = original is not None and params.n_ctx > int(original)
        return (
            lib.llama_version().decode(),
            lib.llama_print_system_info().decode(),  # one version is compiled for other processors, too
            f"state {lib.LLAMA_STATE_SEQ_VERSION}",
            f"types {params.type_k} {params.type_v}",
            f"flash attention {params.flash_attn_type}",
            f"full window {params.swa_full}",
            f"stretched {stretched}",
        )

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        """Let a sequence share the cells that another one has for the positions from `start` to before `end`. Copies no bytes."""
        lib.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove_sequence(self, sequence_id: int) -> None:
        """Take a sequence out of its cells; those that no other one shares are free."""
        lib.llama_memory_seq_rm(self._memory, sequence_id, -1, -1)

    def cut_sequence(self, sequence_id: int, length: int) -> None:
        """Take a sequence out of its cells from a position on."""
        lib.llama_memory_seq_rm(self._memory, sequence_id, length, -1)

    def clear_memory(self) -> None:
        """Take all sequences out of their cells. The next row gets the first cell, as in a new context."""
        lib.llama_memory_clear(self._memory, False)

    def first_position(self, sequence_id: int) -> int:
        """Return the lowest position that a sequence still has in every layer; -1 for an empty sequence."""
        return int(lib.llama_memory_seq_pos_min(self._memory, sequence_id))

    def last_position(self, sequence_id: int) -> int:
        """Return the highest position that a sequence has in every layer; -1 for an empty sequence."""
        return int(lib.llama_memory_seq_pos_max(self._memory, sequence_id))

    def export_state(self, sequence_id: int) -> memoryview:
        """Return the state of a sequence: its cells' positions, then keys and values, layer by layer; then its checkpoint, if any.

        Raises:
            NativeError: llama.cpp wrote something else than it had announced.
        """
        return self._export(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_NONE)

    def export_checkpoint(self, sequence_id: int) -> memoryview:
        """Return the part of a sequence's state that is of use at its end only: recurrent states, the cells of a small window.

        Raises:
            NativeError: llama.cpp wrote something else than it had announced.
        """
        return self._export(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)

    def export_without(self, sequence_id: int, no_checkpoint: bytes | memoryview) -> memoryview:
        """Return the state of a sequence as if it had no checkpoint; `no_checkpoint` is that of an empty sequence.

        A state is a header, the cells and the checkpoint, a checkpoint the same header and the checkpoint.
        """
        state = self._export(sequence_id, lib.LLAMA_STATE_SEQ_FLAGS_NONE)
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        own_bytes = lib.llama_state_seq_get_size_ext(self._handle, sequence_id, flags) - _HEADER_BYTES
        return memoryview(b"".join((state[: len(state) - own_bytes], no_checkpoint[_HEADER_BYTES:])))

    def _export(self, sequence_id: int, flags: int) -> memoryview:
        size = lib.llama_state_seq_get_size_ext(self._handle, sequence_id, flags)
        state = np.empty(size, np.uint8)
        address = state.ctypes.data_as(_BYTES)
        written = lib.llama_state_seq_get_data_ext(self._handle, address, size, sequence_id, flags)
        if written != size:
            raise NativeError(f"the state of sequence {sequence_id} has {written:,} bytes instead of {size:,}")
        return state.data

    def import_state(self, sequence_id: int, state: bytes | memoryview) -> bool:
        """Put an exported state into free cells, as a sequence that was empty; tell whether llama.cpp took it.

        It does not notice damaged bytes: verify them before.
        """
        return self._import(sequence_id, state, lib.LLAMA_STATE_SEQ_FLAGS_NONE)

    def import_checkpoint(self, sequence_id: int, state: bytes | memoryview) -> bool:
        """Put an exported checkpoint in the place of the one that a sequence has; tell whether llama.cpp took it.

        It notices neither damaged bytes nor those of another sequence: verify them before.
        """
        return self._import(sequence_id, state, lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)

    def _import(self, sequence_id: int, state: bytes | memoryview, flags: int) -> bool:
        address = np.frombuffer(state, np.uint8).ctypes.data_as(_BYTES)
        read = lib.llama_state_seq_set_data_ext(self._handle, address, len(state), sequence_id, flags)
        return int(read) == len(state)

    def state_bytes(self) -> int:
        """Return the size of all live state; it grows with every used cell."""
        return int(lib.llama_state_get_size(self._handle))

    def close(self) -> None:
        if self._handle:
            lib.llama_free(self._handle)
            self._handle = None


CANDIDATE: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""Memory layout of llama_token_data."""


class Candidates:
    """The array that samplers work on, one entry a token of the vocabulary; filled anew for every row."""

    def __init__(self, vocabulary_size: int) -> None:
        self._entries = np.zeros(vocabulary_size, CANDIDATE)
        self._all_ids = np.arange(vocabulary_size, dtype=np.int32)
        self._array = lib.llama_token_data_array()
        offset = getattr(lib.llama_token_data_array, "data").offset  # noqa: B009  the class attribute is a descriptor
        self._data = ctypes.c_void_p.from_buffer(self._array, offset)
        self._address = self._entries.ctypes.data
        self.reference = ctypes.byref(self._array)

    def fill(self, logits: Logits) -> None:
        self._entries["id"] = self._all_ids
        self._entries["logit"] = logits
        self._data.value = self._address  # samplers may have moved it
        self._array.size = len(self._entries)
        self._array.selected = -1
        self._array.sorted = False

    def selected(self) -> int:
        """Return the token that the last sampler of a chain chose.

        Raises:
            NativeError: no sampler chose one.
        """
        if self._array.selected < 0:
            raise NativeError("the sampler chain chose no token")
        return int(self._array.data[self._array.selected].id)


class SamplerChain:
    """Samplers applied in the order in which they were added; owns them."""

    def __init__(self) -> None:
        self._handle = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())

    def add_logit_bias(self, vocabulary_size: int, biases: Sequence[tuple[int, float]]) -> None:
        array = (lib.llama_logit_bias * len(biases))(*(lib.llama_logit_bias(*bias) for bias in biases))
        lib.llama_sampler_chain_add(
            self._handle, lib.llama_sampler_init_logit_bias(vocabulary_size, len(biases), array)
        )

    def add_penalties(
        self,
        vocabulary_size: int,
        last_n: int,
        *,
        repeat: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
        history: Sequence[int] = (),
    ) -> None:
        """Penalise the last `last_n` tokens: those of `history` and those accepted later."""
        sampler = lib.llama_sampler_init_penalties(vocabulary_size, last_n, repeat, frequency, presence)
        for token in history:
            lib.llama_sampler_accept(sampler, token)
        lib.llama_sampler_chain_add(self._handle, sampler)

    def add_top_k(self, k: int) -> None:
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_top_k(k))

    def add_typical(self, p: float) -> None:
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_typical(p, 1))

    def add_top_p(self, p: float) -> None:
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_top_p(p, 1))

    def add_min_p(self, p: float) -> None:
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_min_p(p, 1))

    def add_temperature(self, temperature: float) -> None:
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_temp(temperature))

    def add_greedy(self) -> None:
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_greedy())

    def add_draw(self, seed: int) -> None:
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_dist(seed))

    def choose(self, candidates: Candidates) -> int:
        """Apply the chain to filled candidates, tell it the chosen token, and return that token."""
        lib.llama_sampler_apply(self._handle, candidates.reference)
        token = candidates.selected()
        lib.llama_sampler_accept(self._handle, token)
        return token

    def close(self) -> None:
        if self._handle:
            lib.llama_sampler_free(self._handle)
            self._handle = None
