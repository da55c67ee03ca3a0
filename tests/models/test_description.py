"""What headers say, put together: groups of tensors, bits per weight, metadata of any kind."""

from dataclasses import replace

import pytest
from split_models import split_gguf

from pinyon.models.description import ArrayShown, TensorGroup, describe, group_of, quant_mix
from pinyon.models.gguf_header import parse_header, read_header
from pinyon.models.gguf_reader import ValueType
from pinyon.models.split_files import headers_of

from .gguf_files import Gguf, Tensor
from .gguf_files import tiny as tiny_header


def header(file: Gguf):
    data = file.encode()
    return parse_header(data, len(data))


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("token_embd.weight", TensorGroup.EMBEDDINGS),
        ("per_layer_token_embd.weight", TensorGroup.EMBEDDINGS),
        ("token_embd_norm.weight", TensorGroup.NORMS),
        ("output.weight", TensorGroup.OUTPUT),
        ("output_norm.weight", TensorGroup.NORMS),
        ("blk.0.attn_norm.weight", TensorGroup.NORMS),
        ("blk.0.attn_q_norm.weight", TensorGroup.NORMS),
        ("blk.0.ffn_norm.weight", TensorGroup.NORMS),
        ("blk.0.attn_q.weight", TensorGroup.ATTENTION),
        ("blk.0.attn_output.weight", TensorGroup.ATTENTION),
        ("blk.0.attn_kv_a_mqa.weight", TensorGroup.ATTENTION),
        ("blk.31.attn_sinks.weight", TensorGroup.ATTENTION),
        ("blk.0.ffn_gate.weight", TensorGroup.FEED_FORWARD),
        ("blk.0.ffn_gate_exps.weight", TensorGroup.EXPERTS),
        ("blk.0.ffn_down_shexp.weight", TensorGroup.EXPERTS),
        ("blk.0.ffn_gate_inp.weight", TensorGroup.EXPERTS),
        ("blk.0.exp_probs_b.bias", TensorGroup.EXPERTS),
        ("blk.0.ssm_in.weight", TensorGroup.RECURRENT),
        ("blk.0.ssm_norm.weight", TensorGroup.NORMS),
        ("blk.0.time_mix_key.weight", TensorGroup.RECURRENT),
        ("blk.0.shortconv.conv.weight", TensorGroup.RECURRENT),
        ("rope_freqs.weight", TensorGroup.OTHER),
    ],
)
def test_tensors_are_grouped_by_what_they_are_for(name, group):
    assert group_of(name) is group


def test_each_group_has_its_types_with_bytes_and_bits():
    tensors = (
        Tensor("blk.0.attn_q.weight", (256, 2), type=12),  # Q4_K: 144 bytes for 256 weights
        Tensor("blk.0.attn_v.weight", (256, 2), type=14),  # Q6_K: 210
        Tensor("blk.1.attn_q.weight", (256, 4), type=12),
        Tensor("output_norm.weight", (64,)),
    )
    attention, norms = quant_mix((header(replace(tiny_header(), tensors=tensors)),))
    assert [(share.type, share.tensors, share.parameters, share.size_bytes) for share in attention.types] == [
        ("Q4_K", 2, 1536, 864),
        ("Q6_K", 1, 512, 420),
    ]
    assert [share.bits_per_weight for share in attention.types] == [4.5, 6.5625]
    assert attention.whole.bits_per_weight == pytest.approx(8 * 1284 / 2048)
    assert (norms.group, norms.whole.size_bytes) == (TensorGroup.NORMS, 256)


def test_a_model_is_described_by_its_header():
    about = describe((header(tiny_header()),))
    assert (about.architecture, about.title, about.context_tokens, about.vocabulary) == ("llama", "Tiny Model", 256, 5)
    assert (about.tokenizer, about.license) == ("gpt2", None)
    assert about.parameters == 64 * 5 + 256 * 2 + 64 + 64
    assert about.tensor_bytes == 4 * 64 * 5 + 2 * 144 + 2 * 4 * 64
    assert about.metadata["tokenizer.ggml.tokens"] == ArrayShown("STRING", 5)
    assert about.metadata["llama.attention.head_count_kv"] == (2, 4)
    assert about.metadata["tokenizer.ggml.add_bos_token"] is True


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"general.license": "apache-2.0"}, "apache-2.0"),
        ({"general.license": "other", "general.license.name": "gemma"}, "gemma"),
        ({"general.license": "mit", "general.license.link": "https://x"}, "mit, https://x"),
    ],
)
def test_the_licence_is_what_the_file_says(entries, expected):
    file = tiny_header()
    for key, value in entries.items():
        file = file.with_value(key, ValueType.STRING, value)
    assert describe((header(file),)).license == expected


def test_a_split_model_is_described_as_the_whole_one(tiny, tmp_path):
    parts = split_gguf(tiny, tmp_path / "big", 3)
    whole, split = describe((read_header(tiny),)), describe(headers_of(parts[1]))
    assert (split.groups, split.parameters, split.tensor_bytes) == (whole.groups, whole.parameters, whole.tensor_bytes)
    assert split.title == whole.title
