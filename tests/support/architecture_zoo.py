"""Small GGUF files with random weights of many architectures, which differ in what they keep of what they read.

Heads are 32 wide, so that keys and values can be quantised too. `width` scales a model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from tiny_models import EOS, VOCABULARY, _add_vocabulary

HEAD, CONTEXT, WINDOW, EXPERTS, EXPERTS_USED = 32, 4096, 100, 4, 2
KERNEL, STATE, GROUPS = 4, 16, 1

Value = int | float | list[int] | list[bool]


@dataclass
class Sketch:
    """A model file to be: metadata without the architecture's prefix, and the shape of each tensor, row length first."""

    architecture: str
    width: int
    layers: int
    heads: int = 4
    kv_heads: int | list[int] = 2
    metadata: dict[str, Value] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def feed_forward(self) -> int:
        return 2 * self.width

    @property
    def inner(self) -> int:
        return 2 * self.width

    def kv_heads_of(self, layer: int) -> int:
        return self.kv_heads if isinstance(self.kv_heads, int) else self.kv_heads[layer]

    def add(self, layer: int | None, tensors: Mapping[str, tuple[int, ...]]) -> None:
        prefix = "" if layer is None else f"blk.{layer}."
        for name, shape in tensors.items():
            is_bare = name.endswith((".bias", "ssm_a", "ssm_d"))
            self.shapes[f"{prefix}{name}" if is_bare else f"{prefix}{name}.weight"] = shape

    def attention(self, layer: int, *, head: int = HEAD, query_factor: int = 1) -> None:
        keys = head * self.kv_heads_of(layer)
        self.add(
            layer,
            {
                "attn_norm": (self.width,),
                "attn_q": (self.width, query_factor * head * self.heads),
                "attn_k": (self.width, keys),
                "attn_v": (self.width, keys),
                "attn_output": (head * self.heads, self.width),
            },
        )

    def norms(self, layer: int, *names: str, width: int | None = None) -> None:
        self.add(layer, dict.fromkeys(names, (width or self.width,)))

    def gated_feed_forward(self, layer: int) -> None:
        wide = self.width, self.feed_forward
        self.add(layer, {"ffn_norm": (self.width,), "ffn_gate": wide, "ffn_up": wide, "ffn_down": wide[::-1]})

    def experts(self, layer: int, *, with_gate: bool = True) -> None:
        into, out = (self.width, HEAD, EXPERTS), (HEAD, self.width, EXPERTS)
        self.add(layer, {"ffn_gate_inp": (self.width, EXPERTS), "ffn_up_exps": into, "ffn_down_exps": out})
        if with_gate:
            self.add(layer, {"ffn_gate_exps": into})

    def mamba(self, layer: int, rank: int = 4) -> None:
        self.add(
            layer,
            {
                "attn_norm": (self.width,),
                "ssm_in": (self.width, 2 * self.inner),
                "ssm_conv1d": (KERNEL, self.inner),
                "ssm_conv1d.bias": (self.inner,),
                "ssm_x": (self.inner, rank + 2 * STATE),
                "ssm_dt": (rank, self.inner),
                "ssm_dt.bias": (self.inner,),
                "ssm_a": (STATE, self.inner),
                "ssm_d": (self.inner,),
                "ssm_out": (self.inner, self.width),
            },
        )

    def mamba2(self, layer: int, heads: int = 4) -> None:
        convolved = self.inner + 2 * GROUPS * STATE
        self.add(
            layer,
            {
                "attn_norm": (self.width,),
                "ssm_in": (self.width, self.inner + convolved + heads),
                "ssm_conv1d": (KERNEL, convolved),
                "ssm_conv1d.bias": (convolved,),
                "ssm_dt.bias": (heads,),
                "ssm_a": (1, heads),
                "ssm_d": (1, heads),
                "ssm_norm": (self.inner // GROUPS, GROUPS),
                "ssm_out": (self.inner, self.width),
            },
        )

    def states(self, rank: int = 4, groups: int | None = None, state: int = STATE, inner: int | None = None) -> None:
        sizes = {"conv_kernel": KERNEL, "inner_size": inner or self.inner, "state_size": state, "time_step_rank": rank}
        self.metadata |= {f"ssm.{name}": size for name, size in sizes.items()}
        if groups is not None:
            self.metadata["ssm.group_count"] = groups

    def expert_counts(self) -> None:
        self.metadata |= {
            "expert_count": EXPERTS,
            "expert_used_count": EXPERTS_USED,
            "expert_feed_forward_length": HEAD,
        }

    def write(self, path: Path, seed: int = 0) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        values: dict[str, Value] = {
            "context_length": CONTEXT,
            "embedding_length": self.width,
            "block_count": self.layers,
            "feed_forward_length": self.feed_forward,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.layer_norm_epsilon": 1e-5,
        }
        for key, value in (values | self.metadata).items():
            _add_value(writer, f"{self.architecture}.{key}", value)
        _add_vocabulary(writer, template=None, add_bos=False, eos=EOS, changed={})
        self.add(None, {"token_embd": (self.width, VOCABULARY)})
        if "output_norm.weight" not in self.shapes and "token_embd_norm.weight" not in self.shapes:
            self.add(None, {"output_norm": (self.width,)})
        random = np.random.default_rng(seed)
        for name, shape in self.shapes.items():
            writer.add_tensor(name, (0.1 * random.normal(size=shape[::-1])).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add_value(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def llama(width: int) -> Sketch:
    return _plain("llama", width, metadata={"rope.dimension_count": HEAD})


def qwen2_one_head(width: int) -> Sketch:
    """Write a qwen2 whose query heads share one head of keys and values."""
    return _plain("qwen2", width, kv_heads=1)


def qwen3(width: int) -> Sketch:
    sketch = _plain("qwen3", width, metadata=_head_lengths())
    for layer in range(sketch.layers):
        sketch.norms(layer, "attn_q_norm", "attn_k_norm", width=HEAD)
    return sketch


def qwen3moe(width: int) -> Sketch:
    sketch = Sketch("qwen3moe", width, 2, metadata=_head_lengths())
    sketch.expert_counts()
    for layer in range(sketch.layers):
        sketch.attention(layer)
        sketch.norms(layer, "ffn_norm")
        sketch.norms(layer, "attn_q_norm", "attn_k_norm", width=HEAD)
        sketch.experts(layer)
    return sketch


def phi3(width: int) -> Sketch:
    """Write a phi3 without grouped heads: as many of keys and values as of queries."""
    sketch = Sketch("phi3", width, 2, kv_heads=4, metadata={"rope.dimension_count": HEAD})
    for layer in range(sketch.layers):
        sketch.norms(layer, "attn_norm", "ffn_norm")
        sketch.add(
            layer,
            {
                "attn_qkv": (width, 3 * HEAD * sketch.heads),
                "attn_output": (HEAD * sketch.heads, width),
                "ffn_up": (width, 2 * sketch.feed_forward),
                "ffn_down": (sketch.feed_forward, width),
            },
        )
    return sketch


def gemma2(width: int) -> Sketch:
    return _with_post_norms("gemma2", width, {"attention.sliding_window": WINDOW, **_head_lengths()})


def gemma3(width: int) -> Sketch:
    pattern = [True, False, True, True]
    metadata = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": pattern, **_head_lengths()}
    sketch = _with_post_norms("gemma3", width, metadata)
    for layer in range(sketch.layers):
        sketch.norms(layer, "attn_q_norm", "attn_k_norm", width=HEAD)
    return sketch


def gemma4(width: int) -> Sketch:
    """Write a gemma4: its windowed layers have smaller heads, and the last two layers use what those before keep."""
    pattern, small = [True, True, True, False, True, False], HEAD
    metadata: dict[str, Value] = {
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": pattern,
        "attention.shared_kv_layers": 2,
        "attention.key_length_swa": small,
        "attention.value_length_swa": small,
        "rope.dimension_count_swa": small,
        "embedding_length_per_layer_input": 0,
        "attention.key_length": 2 * HEAD,
        "attention.value_length": 2 * HEAD,
    }
    sketch = Sketch("gemma4", width, len(pattern), metadata=metadata)
    for layer, is_windowed in enumerate(pattern):
        head = small if is_windowed else 2 * HEAD
        sketch.attention(layer, head=head)
        sketch.gated_feed_forward(layer)
        sketch.norms(layer, "post_attention_norm", "post_ffw_norm")
        sketch.norms(layer, "attn_q_norm", "attn_k_norm", width=head)
    sketch.add(None, {"rope_freqs": (HEAD,)})
    return sketch


def cohere2(width: int) -> Sketch:
    sketch = _plain("cohere2", width, layers=4, metadata={"attention.sliding_window": WINDOW, "logit_scale": 0.1})
    for layer in range(sketch.layers):
        del sketch.shapes[f"blk.{layer}.ffn_norm.weight"]
    return sketch


def olmo2(width: int) -> Sketch:
    sketch = _with_post_norms("olmo2", width, {})
    for layer in range(sketch.layers):
        for name in "attn_norm", "ffn_norm":
            del sketch.shapes[f"blk.{layer}.{name}.weight"]
        sketch.norms(layer, "attn_q_norm", width=HEAD * sketch.heads)
        sketch.norms(layer, "attn_k_norm", width=HEAD * sketch.kv_heads_of(layer))
    sketch.add(None, {"output": (width, VOCABULARY)})
    return sketch


def gpt_oss(width: int) -> Sketch:
    metadata = {"attention.sliding_window": WINDOW, "rope.dimension_count": HEAD, **_head_lengths()}
    sketch = Sketch("gpt-oss", width, 4, metadata=metadata)
    sketch.expert_counts()
    for layer in range(sketch.layers):
        sketch.attention(layer)
        sketch.norms(layer, "post_attention_norm")
        sketch.experts(layer)
        sketch.add(
            layer,
            {
                "attn_sinks": (sketch.heads,),
                "attn_output.bias": (width,),
                "ffn_gate_inp.bias": (EXPERTS,),
                "ffn_gate_exps.bias": (HEAD, EXPERTS),
                "ffn_up_exps.bias": (HEAD, EXPERTS),
                "ffn_down_exps.bias": (width, EXPERTS),
            },
        )
    sketch.add(None, {"output": (width, VOCABULARY)})
    return sketch


def deepseek2(width: int) -> Sketch:
    """Write a deepseek2 with multi-head latent attention: one vector of 64 + 32 numbers a token and layer."""
    rank, rope, nope, value, query_rank = 64, 32, 32, 32, 48
    metadata = {
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": query_rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": value,
        "rope.dimension_count": rope,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.0,
    }
    sketch = Sketch("deepseek2", width, 2, kv_heads=1, metadata=metadata)
    sketch.expert_counts()
    for layer in range(sketch.layers):
        sketch.add(
            layer,
            {
                "attn_norm": (width,),
                "attn_q_a_norm": (query_rank,),
                "attn_kv_a_norm": (rank,),
                "attn_q_a": (width, query_rank),
                "attn_q_b": (query_rank, sketch.heads * (nope + rope)),
                "attn_kv_a_mqa": (width, rank + rope),
                "attn_k_b": (nope, rank, sketch.heads),
                "attn_v_b": (rank, value, sketch.heads),
                "attn_output": (sketch.heads * value, width),
            },
        )
    sketch.gated_feed_forward(0)
    sketch.norms(1, "ffn_norm")
    sketch.experts(1)
    shared = width, HEAD
    sketch.add(1, {"ffn_gate_shexp": shared, "ffn_up_shexp": shared, "ffn_down_shexp": shared[::-1]})
    return sketch


def mamba(width: int) -> Sketch:
    sketch = Sketch("mamba", width, 2, heads=0, kv_heads=0)
    sketch.states()
    for layer in range(sketch.layers):
        sketch.mamba(layer)
    return sketch


def mamba2(width: int) -> Sketch:
    sketch = Sketch("mamba2", width, 2, heads=0, kv_heads=0)
    sketch.states(groups=GROUPS)
    for layer in range(sketch.layers):
        sketch.mamba2(layer)
    return sketch


def jamba(width: int) -> Sketch:
    sketch = Sketch("jamba", width, 3, kv_heads=[0, 2, 0])
    sketch.states()
    for layer in range(sketch.layers):
        if sketch.kv_heads_of(layer):
            sketch.attention(layer)
        else:
            sketch.mamba(layer)
            for name, size in ("dt", 4), ("b", STATE), ("c", STATE):
                sketch.norms(layer, f"ssm_{name}_norm", width=size)
        sketch.gated_feed_forward(layer)
    return sketch


def granite_hybrid(width: int) -> Sketch:
    sketch = Sketch("granitehybrid", width, 3, kv_heads=[0, 2, 0], metadata={"rope.dimension_count": HEAD})
    sketch.states(groups=GROUPS)
    for layer in range(sketch.layers):
        if sketch.kv_heads_of(layer):
            sketch.attention(layer)
        else:
            sketch.mamba2(layer)
        sketch.gated_feed_forward(layer)
    return sketch


def falcon_h1(width: int) -> Sketch:
    """Write a falcon-h1: every layer has attention and a state beside it."""
    sketch = Sketch("falcon-h1", width, 2, metadata=_head_lengths())
    sketch.states(groups=GROUPS)
    for layer in range(sketch.layers):
        sketch.mamba2(layer)
        sketch.attention(layer)
        sketch.gated_feed_forward(layer)
        sketch.shapes[f"blk.{layer}.ffn_norm"] = sketch.shapes.pop(f"blk.{layer}.ffn_norm.weight")
    return sketch


def nemotron_h(width: int) -> Sketch:
    """Write a nemotron_h: a layer is a state, feed forward, or attention."""
    sketch = Sketch("nemotron_h", width, 4, kv_heads=[0, 0, 2, 0], metadata=_head_lengths())
    sketch.metadata["feed_forward_length"] = [0, 2 * width, 0, 0]
    sketch.states(groups=GROUPS)
    for layer in range(sketch.layers):
        if layer == 1:
            wide = width, sketch.feed_forward
            sketch.add(layer, {"attn_norm": (width,), "ffn_up": wide, "ffn_down": wide[::-1]})
        elif sketch.kv_heads_of(layer):
            sketch.attention(layer)
        else:
            sketch.mamba2(layer)
    return sketch


def lfm2(width: int) -> Sketch:
    """Write an lfm2: short convolutions between layers with attention."""
    cached = 3
    sketch = Sketch("lfm2", width, 3, kv_heads=[0, 2, 0], metadata={"shortconv.l_cache": cached})
    for layer in range(sketch.layers):
        sketch.gated_feed_forward(layer)
        if sketch.kv_heads_of(layer):
            sketch.attention(layer)
            sketch.norms(layer, "attn_q_norm", "attn_k_norm", width=HEAD)
        else:
            sketch.add(
                layer,
                {
                    "attn_norm": (width,),
                    "shortconv.conv": (cached, width),
                    "shortconv.in_proj": (width, 3 * width),
                    "shortconv.out_proj": (width, width),
                },
            )
    sketch.add(None, {"token_embd_norm": (width,)})
    return sketch


def qwen3next(width: int) -> Sketch:
    """Write a qwen3next: one layer in four has attention, the others a gated delta net."""
    state, groups, rank = 32, 2, 4
    keys, values = state * groups, state * rank
    sketch = Sketch("qwen3next", width, 4, metadata={"rope.dimension_count": HEAD, **_head_lengths()})
    sketch.metadata["expert_shared_feed_forward_length"] = HEAD
    sketch.expert_counts()
    sketch.states(rank=rank, groups=groups, state=state, inner=values)
    for layer in range(sketch.layers):
        if (layer + 1) % 4 == 0:
            sketch.attention(layer, query_factor=2)
            sketch.norms(layer, "attn_q_norm", "attn_k_norm", width=HEAD)
        else:
            sketch.add(
                layer,
                {
                    "attn_norm": (width,),
                    "attn_qkv": (width, 2 * keys + values),
                    "attn_gate": (width, values),
                    "ssm_conv1d": (KERNEL, 2 * keys + values),
                    "ssm_dt.bias": (rank,),
                    "ssm_a": (rank,),
                    "ssm_ba": (width, 2 * rank),
                    "ssm_norm": (state,),
                    "ssm_out": (values, width),
                },
            )
        sketch.norms(layer, "post_attention_norm")
        sketch.experts(layer)
        shared = width, HEAD
        sketch.add(layer, {"ffn_gate_shexp": shared, "ffn_up_shexp": shared, "ffn_down_shexp": shared[::-1]})
        sketch.add(layer, {"ffn_gate_inp_shexp": (width,)})
    return sketch


ZOO: dict[str, Callable[[int], Sketch]] = {
    "llama": llama,
    "qwen2 with one head": qwen2_one_head,
    "qwen3": qwen3,
    "qwen3moe": qwen3moe,
    "phi3": phi3,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "cohere2": cohere2,
    "olmo2": olmo2,
    "gpt-oss": gpt_oss,
    "deepseek2": deepseek2,
    "mamba": mamba,
    "mamba2": mamba2,
    "jamba": jamba,
    "granitehybrid": granite_hybrid,
    "falcon-h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "lfm2": lfm2,
    "qwen3next": qwen3next,
}


def _head_lengths() -> dict[str, Value]:
    return {"attention.key_length": HEAD, "attention.value_length": HEAD}


def _plain(
    name: str, width: int, *, layers: int = 2, kv_heads: int = 2, metadata: dict[str, Value] | None = None
) -> Sketch:
    sketch = Sketch(name, width, layers, kv_heads=kv_heads, metadata=metadata or {})
    for layer in range(layers):
        sketch.attention(layer)
        sketch.gated_feed_forward(layer)
    return sketch


def _with_post_norms(name: str, width: int, metadata: dict[str, Value]) -> Sketch:
    sketch = _plain(name, width, layers=4, metadata=metadata)
    for layer in range(sketch.layers):
        sketch.norms(layer, "post_attention_norm", "post_ffw_norm")
    return sketch
