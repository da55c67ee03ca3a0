import os
from contextlib import closing

import gguf
import numpy as np
import pytest

from pinyon.engine.errors import ModelLoadError
from pinyon.engine.hollow_model import CONTEXT, TOKENS, Shape, write_hollow_model
from pinyon.engine.native import Context, Model, NativeLog, RowBuffer
from pinyon.engine.probe_messages import WeightType

Q4_0 = WeightType(2, 32, 18)
Q6_K = WeightType(14, 256, 210)
SHAPE = Shape(3, 256, 512)


def test_the_file_says_what_it_was_asked_to(tmp_path):
    write_hollow_model(tmp_path / "model.gguf", SHAPE, Q6_K)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    matrices = [tensor for tensor in tensors.values() if tensor.tensor_type == gguf.GGMLQuantizationType.Q6_K]
    assert len(matrices) == 3 * 7
    assert sum(int(matrix.n_elements) for matrix in matrices) == 3 * SHAPE.layer_weights
    assert not any(matrix.data.any() for matrix in matrices)
    others = [tensor for tensor in tensors.values() if tensor.tensor_type == gguf.GGMLQuantizationType.F32]
    assert len(others) == 2 + 3 * 2
    assert all((tensor.data == 1).all() for tensor in others)


def test_it_takes_next_to_no_disk(tmp_path):
    file = tmp_path / "model.gguf"
    write_hollow_model(file, Shape(8, 1024, 4096), Q4_0)
    assert file.stat().st_size > 8 * Shape(1, 1024, 4096).layer_weights * 18 // 32
    if hasattr(os, "statvfs"):
        assert file.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("kind", [Q4_0, Q6_K, WeightType(30, 1, 2)])
def test_llama_cpp_computes_with_it(tmp_path, kind):
    with (tmp_path / "log").open("w") as stream:
        log = NativeLog(stream)
        write_hollow_model(tmp_path / "model.gguf", SHAPE, kind)
        with (
            closing(Model(tmp_path / "model.gguf", log, lambda _: True)) as model,
            closing(Context(model, log, cells=CONTEXT, sequence_ids=4, batch_rows=4, threads=1)) as context,
        ):
            assert model.trained_context == CONTEXT
            assert model.vocabulary.size == TOKENS
            buffer = RowBuffer(4)
            buffer.positions[:] = range(4)
            buffer.wants_logits[:] = True
            context.decode(buffer, 4)
            # Layers add nothing to embeddings of ones, so each logit is the sum of a normalised width.
            np.testing.assert_allclose(context.logits(4), SHAPE.width, rtol=1e-3)


def test_a_type_that_there_is_not_is_refused(tmp_path):
    with (tmp_path / "log").open("w") as stream:
        write_hollow_model(tmp_path / "model.gguf", SHAPE, WeightType(4, 32, 18))
        with pytest.raises(ModelLoadError):
            Model(tmp_path / "model.gguf", NativeLog(stream), lambda _: True)
