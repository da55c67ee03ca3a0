"""The estimate of the compute buffer against what llama.cpp would reserve for models of real sizes."""

import pytest
from dry_runs import compute_mib, write_shape

from pinyon.models.gguf_header import read_header
from pinyon.models.memory.compute import compute_bytes
from pinyon.models.memory.kv import KvChoice
from pinyon.models.memory.sizes import model_sizes

MIB = 1 << 20
DENSE = {
    "SmolLM2 135M": (576, 9, 3, 64, 1536, 49_152),
    "Qwen2.5 0.5B": (896, 14, 2, 64, 4864, 151_936),
    "Gemma 3 270M": (640, 4, 1, 256, 2048, 262_144),
    "Llama 3.2 1B": (2048, 32, 8, 64, 8192, 128_256),
    "Llama 3.1 8B": (4096, 32, 8, 128, 14_336, 128_256),
    "Qwen3 4B": (2560, 32, 8, 128, 9728, 151_936),
    "many heads": (1024, 16, 16, 128, 1024, 32_000),
}
EXPERTS = {
    "Qwen3 30B-A3B": (2048, 32, 4, 128, 768, 151_936, 128, 8),
    "Qwen3 235B-A22B": (4096, 64, 4, 128, 1536, 151_936, 128, 8),
    "OLMoE": (2048, 16, 16, 128, 1024, 50_304, 64, 8),
    "narrow experts": (2048, 32, 4, 128, 256, 32_000, 64, 8),
    "wide experts": (4096, 32, 8, 128, 14_336, 32_000, 8, 2),
}
NAMES = "embedding", "heads", "kv_heads", "head", "feed_forward", "vocabulary", "experts", "experts_used"
CONTEXTS = (2048, 64, 512), (32_768, 64, 512), (8192, 8, 512), (8192, 64, 128)


@pytest.mark.parametrize("model", [*DENSE, *EXPERTS])
def test_the_estimate_is_close_to_the_reservation(model, tmp_path):
    sizes_of_model = {**DENSE, **EXPERTS}[model]
    path = write_shape(tmp_path / "model.gguf", **dict(zip(NAMES, sizes_of_model, strict=False)))
    sizes = model_sizes((read_header(path),))
    for choice, reserved in zip(CONTEXTS, compute_mib(path, CONTEXTS), strict=True):
        cells, sequences, rows = choice
        is_of_the_output = rows == 128
        planned = compute_bytes(sizes, KvChoice(cells, sequences, rows)) / MIB
        assert planned == pytest.approx(reserved, rel=0.09 if is_of_the_output else 0.025), choice
