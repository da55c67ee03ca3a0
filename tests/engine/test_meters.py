"""What an engine says it holds and does, against what it was given to do."""

import msgspec
import pytest
from fake_disk import FakeDisk
from fakes import BLOCK_BYTES, make_engine, make_store, run_to_end, submit, tidied
from kv_compare import MOVE_S, ROW_S

from pinyon.engine.config import Limits
from pinyon.engine.drafters import SuffixDrafter
from pinyon.engine.engine import NO_DRAFTS
from pinyon.engine.meters import Meters, Pace, Service
from pinyon.engine.request import GenerateRequest, SamplingParams, Text
from pinyon.engine.tally import Counts


def ask(name, prompt, **fields):
    return GenerateRequest(name, (Text(prompt),), SamplingParams(temperature=0), **{"max_tokens": 8, **fields})


def test_an_engine_that_has_done_nothing_holds_nothing_and_knows_no_speed():
    meters = make_engine(cells=1024).engine.meters()
    assert msgspec.structs.replace(meters, service=Service()) == Meters(cells=1024, no_drafts=NO_DRAFTS)
    values = msgspec.structs.astuple(meters.service)
    counts = [value.number for value in values if isinstance(value, Counts)]
    assert (counts, [value for value in values if isinstance(value, int)]) == ([0] * 6, [0] * 9)
    assert [value for value in values if isinstance(value, Pace)] == [Pace()] * 3


def test_steps_and_tokens_are_counted_with_their_times():
    made = make_engine(cells=1024)
    run_to_end(made.engine, ask("a", "x" * 100, max_tokens=5))
    meters = made.engine.meters()
    service = meters.service
    assert service.step_s.number == 6, "two chunks, the second of which gives a token, and four tokens"
    assert service.step_rows.total == 104
    assert service.step_s.total == pytest.approx(104 * ROW_S)
    assert (service.one_row.rows, service.one_row.rows_per_s) == (4, pytest.approx(1 / ROW_S))
    assert service.prompt_rows.rows == 64, "the rest of the prompt came in a smaller step"
    assert service.token_s.number == 4
    assert service.token_s.total == pytest.approx(4 * ROW_S)
    assert meters.curve is not None
    assert service.slow_steps == 0


def test_who_had_to_give_way_or_to_go_is_counted():
    made = make_engine(cells=200, limits=Limits(queue=2, long_share=1.0), sequence_ids=2)
    for name in "ab":
        submit(made.engine, ask(name, "x" + name, max_tokens=150, ignore_eos=True))
    made.engine.step()
    for name in "cde":
        submit(made.engine, ask(name, name, max_tokens=2, ttft_deadline_s=1000.0))
    made.engine.cancel("c")
    while made.engine.busy:
        made.engine.step()
    service = made.engine.meters().service
    assert (service.refused, service.cancelled) == (1, 1)
    assert service.preempted >= 1
    assert (service.in_time, service.late) == (1, 0)


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
    assert meters.prefill_tokens_per_s * ROW_S == pytest.approx(1, rel=0.1)
    assert round(meters.restore_bytes_per_s * MOVE_S / BLOCK_BYTES, 6) == 1


def test_drafts_are_counted():
    made = make_engine(lambda _name, _tokens, generated: ord("a") + generated % 9, drafter=SuffixDrafter())
    run_to_end(made.engine, ask("a", "x", max_tokens=100))
    meters = made.engine.meters()
    service = meters.service
    assert meters.no_drafts == ""
    assert service.drafted >= service.accepted > 60
    assert service.draft_steps == 99 - service.accepted, (
        "each step gives one token more than came true; the prompt's gave the first"
    )
    assert make_engine().engine.meters().no_drafts == NO_DRAFTS
