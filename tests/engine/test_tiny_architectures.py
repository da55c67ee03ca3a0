"""The tiny models whose state cannot be cut into ranges: llama.cpp takes them for what they are, and they remember."""

import io

import numpy as np
import pytest
from tiny_architectures import CONTEXT, WINDOW, WRITERS, write_tiny_gemma3

from pinyon.engine.native import Context, Model, NativeLog, RowBuffer

pytestmark = pytest.mark.model

TOKENS = 200
FIRST, OTHER = 50, 51


@pytest.fixture(params=WRITERS)
def architecture(request):
    return request.param


@pytest.fixture
def path(architecture, tmp_path):
    return WRITERS[architecture](tmp_path / "tiny.gguf")


def generate(path, first, forced=()):
    """Return the tokens that follow greedily, or those that are forced, and the logits after the last."""
    log = NativeLog(io.StringIO())
    model = Model(path, log, lambda _fraction: True)
    context = Context(model, log, cells=CONTEXT, sequence_ids=2, batch_rows=64, threads=1)
    row, tokens = RowBuffer(1), [first]
    row.wants_logits[0] = 1
    for position in range(TOKENS):
        row.tokens[0], row.positions[0] = tokens[-1], position
        context.decode(row, 1)
        logits = context.logits(1)[0].copy()
        tokens.append(forced[position] if forced else int(logits.argmax()))
    context.close()
    model.close()
    return tokens[1:], logits


def test_llama_cpp_takes_it_for_what_it_is(architecture, path):
    model = Model(path, NativeLog(io.StringIO()), lambda _fraction: True)
    assert model.metadata("general.architecture") == architecture
    assert model.generates_text
    assert model.trained_context == CONTEXT
    assert model.keeps_state_per_sequence == (architecture in {"mamba", "jamba"})
    assert model.window == (WINDOW if architecture == "gemma3" else 0)
    model.close()


def test_the_window_is_the_one_that_was_asked_for(tmp_path):
    model = Model(write_tiny_gemma3(tmp_path / "m.gguf", window=100), NativeLog(io.StringIO()), lambda _fraction: True)
    assert model.window == 100
    model.close()


def test_it_says_the_same_again_and_no_single_token_for_ever(path):
    tokens, logits = generate(path, FIRST)
    again, logits_again = generate(path, FIRST)
    assert tokens == again
    assert np.array_equal(logits, logits_again)
    assert np.isfinite(logits).all()
    assert len(set(tokens)) > TOKENS // 4


def test_the_first_token_is_still_felt_at_the_end(path):
    tokens, logits = generate(path, FIRST)
    _, changed = generate(path, OTHER, forced=tokens)
    assert np.abs(logits - changed).max() > 0.01


def test_the_writers_write_the_same_file_again(architecture, path, tmp_path):
    assert WRITERS[architecture](tmp_path / "again.gguf").read_bytes() == path.read_bytes()
