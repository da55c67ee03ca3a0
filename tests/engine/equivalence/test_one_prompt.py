"""What the comparison stands on: where hits come from, what is taken for true, and cells that lie apart."""

import pytest
from fakes import WholeChunks
from kv_bytes import TIERS
from watched_room import CONTEXT, OTHER, PROMPT

from pinyon.engine.block import BLOCK_TOKENS
from pinyon.engine.context_shape import MAX_BATCH_ROWS, SEQUENCE_IDS
from pinyon.engine.native import Context, RowBuffer

pytestmark = pytest.mark.model


def test_what_is_taken_for_true_is_what_a_bare_loop_computes(any_room):
    any_room.engine._scheduler._budget = WholeChunks()
    any_room.ask(PROMPT)
    cells = any_room.kv._cells
    model, log = any_room.loaded.model, any_room.loaded.context._log
    bare = Context(model, log, cells=CONTEXT, sequence_ids=SEQUENCE_IDS, batch_rows=MAX_BATCH_ROWS, threads=1)
    rows = RowBuffer(BLOCK_TOKENS)
    for start in range(0, len(PROMPT), BLOCK_TOKENS):
        tokens = PROMPT[start : start + BLOCK_TOKENS]
        rows.tokens[: len(tokens)] = tokens
        rows.positions[: len(tokens)] = range(start, start + len(tokens))
        rows.wants_logits[len(tokens) - 1] = 1
        bare.decode(rows, len(tokens))
    leaf = any_room.leaf(PROMPT)
    any_room.witness.compare(leaf)
    scratch = any_room.kv._blocks._scratch
    for position in range(len(PROMPT)):
        states = []
        for context, sequence_id in (bare, 0), (any_room.loaded.context, leaf.sequence_id):
            context.copy_sequence(sequence_id, scratch, position, position + 1)
            states.append(context.export_state(scratch))
            context.remove_sequence(scratch)
        assert states[0] == states[1], f"cell {position}"
    bare.close()
    assert cells.free == CONTEXT - len(PROMPT)


@pytest.mark.parametrize("tier", TIERS)
def test_hits_are_counted_where_they_come_from(any_room, tier):
    any_room.ask(PROMPT)
    assert any_room.witness.hits.total() == 0
    if tier == "RAM":
        any_room.empty()
    if tier == "disk":
        any_room.restart()
    any_room.ask(PROMPT)
    assert {tier: any_room.witness.cells[tier] for tier in TIERS} == {**dict.fromkeys(TIERS, 0), tier: 199}


def test_cells_that_lie_apart_hold_the_same(any_room):
    prompt, unknown = PROMPT[:130], OTHER[:130]
    any_room.ask(prompt)
    any_room.empty()
    neighbours = [f"neighbour {number}" for number in range(6)]
    for number, name in enumerate(neighbours):
        any_room.submit(name, [10 + number], use_cache=False, ignore_eos=True, max_tokens=CONTEXT)
    while any_room.kv._cells.free >= len(neighbours):
        any_room.engine.step()
    for number, name in enumerate(neighbours):
        if number % 3:
            any_room.engine.cancel(name)
    assert any_room.kv._cells.free > CONTEXT / 2, "and nowhere more than 8 of them together"
    any_room.ask(prompt)
    assert any_room.witness.cells == {"RAM": 129, "resident": 0, "disk": 0}
    any_room.ask(unknown)
    any_room.witness.compare_all()
    any_room.restart()
    any_room.ask(unknown)
    assert any_room.witness.cells == {"RAM": 129, "resident": 0, "disk": 129}
