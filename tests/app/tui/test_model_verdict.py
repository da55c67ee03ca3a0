"""What the model picker says of a model, to the letter."""

from dataclasses import replace

import pytest

from pinyon.app.fit import sizes_here
from pinyon.app.memory_bar import LEGEND
from pinyon.app.tui.model_rows import ModelRow
from pinyon.app.tui.model_verdict import cells, context_for, contexts, judged, verdict_lines, words_to_begin_with
from pinyon.app.verdict import Here
from pinyon.models import catalog
from pinyon.models.catalog_headers import catalog_header
from pinyon.models.machine.weight_speed import ROWS, WEIGHT_TYPES, Computer, WeightSpeed
from pinyon.models.memory.fit import Budget, Wish
from pinyon.models.memory.kv import KvType

GIB, MIB = 1 << 30, 1 << 20
COSTS = tuple(1e-11 * rows**0.5 for rows in ROWS)
SPEED = WeightSpeed(
    Computer("b", 2, "c"), ROWS, (1e-6,) * len(ROWS), (0.0,) * len(ROWS), dict.fromkeys(WEIGHT_TYPES, COSTS)
)
LARGE, SMALL = Here(Budget(16 * GIB), SPEED), Here(Budget(600 * MIB))


def row_of(name, **changes):
    entry = catalog.find(name)
    headers = (catalog_header(entry),)
    row = ModelRow(entry.name, True, entry.size_bytes, entry.quantization, headers=headers, sizes=sizes_here(headers))
    return replace(row, **changes)


def test_a_large_machine():
    found = judged(row_of("qwen2.5-coder:1.5b", tokens_per_s=12.5), LARGE, Wish())
    assert cells(found, is_current=True) == (
        "qwen2.5-coder:1.5b", "in use", "1.1 GB", "Q4_K_M", "█░░░░░░░", "32,768", "12",
    )  # fmt: skip
    assert verdict_lines(found) == [
        "RAM ███▓▓░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 2.1 GiB of 16.0 GiB",
        LEGEND,
        "fits with 32,768 tokens of context, KV in f16",
        "Q4_K_M, 5.0 bits per weight: about 0.03 nats",
        "predicted 64.7 tok/s, 8 clients 183, prompts 609; answers had 12.5 tok/s here",
    ]


def test_a_small_machine():
    found = judged(row_of("qwen2.5-coder:1.5b", is_here=False), SMALL, Wish())
    assert cells(found, is_current=False) == (
        "qwen2.5-coder:1.5b", "fetch", "1.1 GB", "Q4_K_M", "████!!!!", "no fit", "",
    )  # fmt: skip
    assert verdict_lines(found) == [
        "RAM ██████████████████!!!!!!!!!!!!!!!!!!!!!! 1.3 GiB of 600 MiB",
        LEGEND,
        (
            "does not fit: needs 1.3 GiB, 600 MiB are free for it: 728 MiB more would have to be free for 4,096 tokens of"
            " context, or weights of at most 331 MiB taken instead of 1.0 GiB"
        ),
        "Q4_K_M, 5.0 bits per weight: about 0.03 nats",
        "to predict speeds, weights have to be measured: m, some 15 s",
    ]


def test_what_was_given_up_is_said():
    found = judged(row_of("qwen2.5-coder:0.5b"), Here(Budget(700 * MIB), SPEED), Wish())
    assert verdict_lines(found) == [
        "RAM ██████████████████████████▓▓▓▓▒▒▒▒▒▒▒▒▒▒ 699 MiB of 700 MiB",
        LEGEND,
        "fits with 4,864 tokens of context, KV in f16",
        "a context of 4,864 tokens instead of the usual 32,768",
        "Q4_K_M, 6.2 bits per weight: about 0.03 nats",
        "predicted 201 tok/s, 8 clients 572, prompts 2,221",
    ]


def test_less_context_than_would_fit():
    lines = verdict_lines(judged(row_of("smollm2"), LARGE, Wish(4096, KvType.Q8_0)))
    assert lines[2] == "fits with 4,096 tokens of context, KV in q8_0; up to 8,192 fit in f16"


def test_every_gpu_has_its_bar_and_the_table_shows_the_fullest():
    here = Here(Budget(16 * GIB, (("CUDA0", 500 * MIB), ("CUDA1", 8 * GIB))))
    found = judged(row_of("qwen2.5-coder:0.5b"), here, Wish())
    lines = verdict_lines(found)
    assert [line.split()[0] for line in lines[:3]] == ["RAM", "CUDA0", "CUDA1"]
    assert lines[3] == LEGEND
    assert cells(found, is_current=False)[4] == "▓▒░░░░░░"


def test_without_a_header_or_a_machine_nothing_is_said():
    bare = ModelRow("bare", True, 0)
    for found in (judged(bare, LARGE, Wish()), judged(row_of("smollm2"), None, Wish())):
        assert verdict_lines(found) == []
        assert cells(found, is_current=False)[4:] == ("", "", "")


def test_a_type_of_kv_that_a_model_cannot_have_is_not_asked_for():
    row = row_of("smollm2")
    kept = replace(row.sizes.kept, head_elements=(80,))  # a block of q8_0 has 32
    odd = replace(row, sizes=replace(row.sizes, kept=kept))
    assert judged(odd, LARGE, Wish(kv_type=KvType.Q8_0)).verdict.kv_type == "f16"
    assert judged(row, LARGE, Wish(kv_type=KvType.Q8_0)).verdict.kv_type == "q8_0"


@pytest.mark.parametrize(("asked", "given"), [(None, None), (4096, 4096), (131_072, 8192)])
def test_no_more_context_than_a_model_was_trained_for(asked, given):
    assert context_for(row_of("smollm2"), asked) == given
    assert context_for(ModelRow("bare", True, 0), asked) == asked


def test_the_contexts_to_choose_from():
    rows = [row_of("smollm2"), ModelRow("bare", True, 0)]
    assert contexts(rows, None) == [None, 4096, 8192]
    assert contexts([*rows, row_of("qwen2.5-coder:0.5b")], 10_000) == [None, 4096, 8192, 10_000, 16_384, 32_768]
    assert contexts([], None) == [None]


def test_where_no_model_is_here_some_have_a_word_to_begin_with():
    rows = [row_of(entry.name, is_here=False) for entry in catalog.CATALOG]
    assert words_to_begin_with(judged(row, LARGE, Wish()) for row in rows) == {
        "smollm2": "small and instant",
        "qwen2.5-coder:0.5b": "balanced",
        "qwen2.5-coder:1.5b": "best that fits",
    }
    assert words_to_begin_with(judged(row, SMALL, Wish()) for row in rows) == {"smollm2": "small and instant"}
    assert words_to_begin_with(judged(row, None, Wish()) for row in rows) == {}
    here = [row_of("gemma3:270m"), *rows]
    assert words_to_begin_with(judged(row, LARGE, Wish()) for row in here) == {}
    assert verdict_lines(judged(rows[0], LARGE, Wish()), "balanced")[0] == "to begin with: balanced"
