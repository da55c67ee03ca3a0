"""What an engine says it holds and does, against what it was given to do."""

from fake_disk import FakeDisk
from fakes import BLOCK_BYTES, make_engine, make_store, run_to_end, submit, tidied
from kv_compare import MOVE_S, ROW_S

from pinyon.engine.meters import Meters
from pinyon.engine.request import GenerateRequest, SamplingParams, Text


def ask(name, prompt, **fields):
    return GenerateRequest(name, (Text(prompt),), SamplingParams(temperature=0), **{"max_tokens": 8, **fields})


def test_an_engine_that_has_done_nothing_holds_nothing_and_knows_no_speed():
    assert make_engine(cells=1024).engine.meters() == Meters(cells=1024)


def test_cells_and_sequences_are_told_by_who_holds_them():
    made = make_engine(cells=1024, sequence_ids=2, store=make_store())
    run_to_end(made.engine, ask("a", "x" * 100))
    for name in "bcd":
        submit(made.engine, ask(name, name * 50))
    made.engine.step()
    meters = made.engine.meters()
    assert (meters.running, meters.waiting) == (len(made.scheduler.running), len(made.scheduler.waiting))
    assert meters.running + meters.waiting == 3
    assert meters.held_cells == made.kv.held_cells > 0
    assert meters.held_cells + meters.idle_cells == made.runner.used_cells
    for name in "bcd":
        made.engine.cancel(name)
    after = made.engine.meters()
    assert (after.running, after.waiting, after.held_cells) == (0, 0, 0)
    assert after.idle_cells == made.runner.used_cells


def test_blocks_are_told_by_where_they_are_and_speeds_as_they_were_measured():
    disk = FakeDisk()
    made = make_engine(cells=1024, store=make_store(disk=disk))
    run_to_end(made.engine, ask("a", "x" * 128, max_tokens=1))
    tidied(made)
    made.kv._costs.measure_restore(BLOCK_BYTES, MOVE_S)
    meters = made.engine.meters()
    assert meters.kv_ram_bytes == 2 * BLOCK_BYTES
    assert meters.kv_disk_bytes > 2 * BLOCK_BYTES, "a file has a head as well"
    assert round(meters.prefill_tokens_per_s * ROW_S, 6) == 1
    assert round(meters.restore_bytes_per_s * MOVE_S / BLOCK_BYTES, 6) == 1
