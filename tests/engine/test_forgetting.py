"""Whole engines on the fake memory, with a real folder: what a conversation left goes, and nothing else does."""

import time

import pytest
from fakes import BLOCK_BYTES, END_OF_TURN, assert_idle, make_engine, run_to_end, submit, text_of
from faulty_files import Fault, FaultyFiles
from kv_world import ABC, QuickFiles, World, ask, check_forgotten, talk_at_random

from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.block_store import BLOCK_TOKENS, BlockStore
from pinyon.engine.cache_notes import CacheNotes, read_notes
from pinyon.engine.cache_report import CacheReport, Miss
from pinyon.engine.events import Removed
from pinyon.engine.kv_folder import DiskTier
from pinyon.engine.sequence import State


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def ends_of(*texts):
    """The ends of all blocks that these texts have, the last of which may be a tail."""
    return {text[:end] for text in texts for end in [*range(BLOCK_TOKENS, len(text), BLOCK_TOKENS), len(text)]}


def test_what_came_before_a_clear_and_ended_before_it_was_heard_leaves_nothing(world):
    submit(world.engine, ask("a", ABC[:150]))
    time.sleep(0.01)
    cleared_s = time.time()
    while world.engine.busy:
        world.engine.step()
    while world.engine.tidy() == 0:
        pass
    assert world.blocks
    world.engine.forget_before(cleared_s)[1].result(10)
    assert (world.blocks, world.idle, world.files) == (set(), set(), set())
    assert world.run("b", ABC[:150])[1] == CacheReport(miss=Miss.NEW)
    world.engine.close()


def test_what_came_and_went_long_before_takes_nothing_younger_along(world):
    world.run("a", ABC[:150])
    now = world.engine._clock()
    world.engine._lately = type(world.engine._lately)([(now - 100, now - 70)])
    world.engine.forget_before(time.time() - 60)[1].result(10)
    assert world.blocks
    world.engine.close()


@pytest.mark.parametrize("where", ["context", "disk"])
def test_nothing_is_left_of_a_conversation(world, where):
    first, _ = world.run("a", ABC[:150], "talk")
    world.run("b", f"{ABC[:150]}{first}? More.", "talk")
    edited = "x" + ABC[:150]
    world.run("c", edited, "talk")
    if where == "disk":
        world = world.restarted()
        assert world.files
    assert world.blocks
    assert world.rows()
    removed = world.forget("talk")
    assert (world.blocks, world.idle, world.files) == (set(), set(), set())
    assert [world.rows(table) for table in ("conversations", "answers", "notes")] == [[], [], []]
    assert removed.blocks >= 5
    assert removed.size_bytes > 0
    assert world.run("d", ABC[:150])[1] == CacheReport(miss=Miss.NEW)
    world.engine.close()


def test_what_conversations_have_in_common_goes_with_the_last_of_them(world):
    common, one, other = ABC[:128], f"{ABC[:128]}first{ABC[200:300]}", f"{ABC[:128]}other{ABC[300:350]}"
    world.run("a", one, "one")
    kept, _ = world.run("b", other, "other")
    world.forget("one")
    assert world.blocks == ends_of(common, (other + kept)[:-1])
    assert world.run("c", one)[1].cached == 128
    world.forget("other")
    assert other[:192] not in world.blocks
    assert world.blocks >= ends_of(common)  # the last request was of no conversation, and goes on from there
    world.engine.close()


def test_what_another_conversation_has_as_well_stays(world):
    text, _ = world.run("a", ABC[:200], "one")
    world.run("b", ABC[:200], "other")
    everything = ends_of((ABC[:200] + text)[:-1])
    assert world.blocks == everything
    assert world.forget("one") == Removed()
    assert world.blocks == everything
    world = world.restarted()
    assert world.forget("one") == Removed()
    assert world.forget("other").blocks == 4
    assert world.blocks == set()
    world.engine.close()


def test_what_is_gone_on_from_without_a_conversation_stays(world):
    text, _ = world.run("a", ABC[:100], "talk")
    other, _ = world.run("b", f"{ABC[:100]}{text}: {ABC[200:300]}")
    world.forget("talk")
    assert world.blocks == ends_of(f"{ABC[:100]}{text}: {ABC[200:300]}{other}"[:-1])
    world.engine.close()


def test_the_other_s_answers_and_notes_stay(world):
    for name, conversation, prompt in (("a", "one", "x"), ("b", "other", "y"), ("c", None, "z")):
        world.run(name, prompt, conversation)
    world.forget("one")
    assert [note.request_id for note in read_notes(world.folder)] == ["b", "c"]
    assert len(world.rows("answers")) == 2
    assert {conversation for conversation, _ in world.rows()} == {"other"}
    world.engine.close()


def test_an_answer_is_not_recognised_any_more(tmp_path):
    def says(_request_id, _tokens, generated):
        return (*b"a lion", END_OF_TURN)[generated]

    world = World(tmp_path, next_token=says)
    for conversation in ("one", "other"):
        world.run(conversation, "hello", conversation)
    text = b"helloa lion"  # there is no control token between the two
    assert world.engine._past_answers.find("", text) == tuple(text)
    world.forget("one")
    assert world.engine._past_answers.find("", text) == tuple(text)
    world = world.restarted()
    world.forget("other")
    assert world.engine._past_answers.find("", text) is None
    world.engine.close()


def test_no_file_holds_any_of_its_text_or_tokens(world):
    secret = "the very secret words of this conversation, which go on for a while, and then some more"
    world.run("a", secret, "talk")
    world.run("b", secret[:66] + "other things")  # its report quotes the secret
    world.forget("talk")
    world.engine.close()
    (note,) = read_notes(world.folder)
    assert (note.report.miss, note.report.expected, note.report.got) == (Miss.DIVERGED, "", "other things")
    for path in world.folder.iterdir():
        data = path.read_bytes()
        assert secret[70:78].encode() not in data
        assert b"talk" not in data


@pytest.mark.parametrize("fields", [{"private": True}, {"use_cache": False}], ids=["private", "off"])
def test_what_is_not_to_be_kept_is_not_noted_either(world, fields):
    world.run("a", ABC[:150], "talk", **fields)
    world.notes._thread.submit(lambda: None).result()
    assert (world.rows(), world.blocks) == ([], set())
    world.forget("talk")
    assert world.idle == set()
    world.engine.close()


def until(world, sequence, state):
    emitted = []
    while sequence.state is not state:
        emitted += world.engine.step()
    return emitted


@pytest.mark.parametrize("state", [State.WAITING, State.PREFILL, State.DECODE])
def test_a_request_under_way_goes_on_and_leaves_nothing(world, state):
    before, _ = world.run("z", ABC[:130])
    request = ask("a", "x" + ABC[:300], "talk", max_tokens=80)
    emitted = submit(world.engine, request)
    (sequence,) = world.engine._answers["a"].open
    emitted += until(world, sequence, state)
    world.engine.tidy()  # some of it is stored
    world.forget("talk")
    while world.engine.busy:
        emitted += world.engine.step()
        world.engine.tidy()
    assert text_of([event for _, event in emitted]) == text_of(run_to_end(make_engine().engine, request)["a"])
    assert_idle(world.made)
    assert world.blocks == ends_of((ABC[:130] + before)[:-1])
    assert world.rows() == []
    assert [note.request_id for note in read_notes(world.folder)] == ["z"]
    world.engine.close()


def test_a_request_that_gets_its_blocks_back_computes_the_rest(world):
    text, _ = world.run("a", ABC[:300], "talk")
    world = world.restarted()
    emitted = submit(world.engine, ask("b", ABC[:300], "talk"))
    (sequence,) = world.engine._answers["b"].open
    world.made.scheduler.admit()
    assert sequence.state is State.RESTORE
    world.made.kv._blocks._read_ahead(sequence.restore)
    world.forget("talk")
    while world.engine.busy:
        emitted += world.engine.step()
    assert text_of([event for _, event in emitted]) == text
    assert_idle(world.made)
    assert (world.blocks, world.idle, world.rows()) == (set(), set(), [])
    world.engine.close()


def test_what_was_stored_of_a_request_that_had_to_wait_goes_too(tmp_path):
    world = World(tmp_path, cells=256)
    for name in ("a", "b"):
        submit(world.engine, ask(name, name + ABC[:20], "talk", max_tokens=150))
    preempted = world.engine._answers["b"].open[0]
    while preempted.admitted is None or preempted.leaf is not None:
        assert world.engine.busy
        world.engine.step()
    world.engine.cancel("b")
    run_to_end(world.engine)
    assert {text[0] for text in world.blocks} == {"a", "b"}
    world.forget("talk")
    assert (world.blocks, world.idle) == (set(), set())
    assert world.rows() == []
    world.engine.close()


def test_until_the_files_have_gone_it_can_be_tried_again(world):
    world.run("a", ABC[:150], "talk")
    world.engine.close()
    files = FaultyFiles(
        Fault.BROKEN, len(world.files) + 2, lasting=True
    )  # they are listed and read, and one is deleted
    world = World(world.folder, files)
    _, done = world.engine.forget("talk")
    with pytest.raises(OSError, match="error"):
        done.result(10)
    assert len(world.files) == 2
    assert world.rows()
    world = world.restarted()
    world.forget("talk")
    assert (world.files, world.rows()) == (set(), [])
    world.engine.close()


def test_what_is_noted_of_blocks_that_have_gone_is_forgotten_at_the_start(world):
    world.run("a", ABC[:150], "talk")
    world.engine.close()
    keys = {bytes.fromhex(name) for name in world.files}
    assert keys <= {key for _, key in world.rows()}
    for path in world.folder.glob("*.kv"):
        path.unlink()
    world = World(world.folder)
    assert not keys & {key for _, key in world.rows()}
    world.engine.close()


def test_what_was_stored_before_the_disk_was_known_is_noted_there(tmp_path):
    made = make_engine(cells=1024, store=BlockStore(1000 * BLOCK_BYTES))
    run_to_end(made.engine, ask("a", ABC[:150], "talk"))
    made.engine.tidy()
    disk, notes = BlockDisk(tmp_path, b"r" * 32, QuickFiles()), CacheNotes(tmp_path, 1 << 20)
    made.engine.use_disk(DiskTier(b"", disk, [], 1 << 30, notes, [], [], frozenset()))
    made.engine.close()
    world = World(tmp_path)
    assert world.files
    world.forget("talk")
    assert (world.files, world.blocks) == (set(), set())
    world.engine.close()


# Trees of conversations at random


@pytest.mark.parametrize(("seed", "blocks"), [*((seed, 1000) for seed in range(4)), *((seed, 7) for seed in range(4))])
def test_whatever_was_said_what_is_forgotten_goes_and_the_rest_stays(tmp_path, seed, blocks):
    world = World(tmp_path, blocks=blocks)
    world, history = talk_at_random(world, seed)
    forgotten = set()
    for name in ("two", "one", "three"):
        world.forget(name)
        forgotten.add(name)
        check_forgotten(world, history, forgotten)
    world = world.restarted()
    check_forgotten(world, history, forgotten)
    assert world.rows() == []
    world.engine.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda store, name: Removed(), "forgotten is left"),
        (lambda store, name: store.forget_before(float("inf")), "else has gone"),
    ],
    ids=["nothing", "everything"],
)
def test_the_check_finds_what_is_left_and_what_is_missing(tmp_path, monkeypatch, fault, words):
    world = World(tmp_path)
    world, history = talk_at_random(world, 0)
    monkeypatch.setattr(BlockStore, "forget", fault)
    world.forget("two")
    with pytest.raises(AssertionError, match=words):
        check_forgotten(world, history, {"two"})
    world.engine.close()


# By age


def test_all_that_was_kept_goes_and_a_request_under_way_leaves_nothing(world):
    world.run("a", ABC[:150])
    request = ask("b", "x" + ABC[:150])
    emitted = submit(world.engine, request)
    emitted += world.engine.step()
    removed, done = world.engine.forget_before(time.time() + 1)
    done.result(10)
    assert removed.blocks == 4
    assert world.idle == set()
    while world.engine.busy:
        emitted += world.engine.step()
    assert text_of([event for _, event in emitted]) == text_of(run_to_end(make_engine().engine, request)["b"])
    assert_idle(world.made)
    assert (world.blocks, world.idle, world.files) == (set(), set(), set())
    assert [world.rows(table) for table in ("conversations", "answers", "notes")] == [[], [], []]
    assert world.run("c", ABC[:150])[1] == CacheReport(miss=Miss.NEW)
    world.engine.close()


def test_what_is_younger_stays_and_so_does_what_it_goes_on_from(world, monkeypatch):
    started = time.time()
    world.run("a", f"{ABC[:128]}old{ABC[200:300]}")
    world.run("b", f"y{ABC[:100]}")
    monkeypatch.setattr(time, "time", lambda: started + 1000)
    young, _ = world.run("c", f"{ABC[:128]}young")
    short, _ = world.run("d", "z")
    _, done = world.engine.forget_before(started + 500)
    done.result(10)
    assert world.blocks == ends_of(f"{ABC[:128]}young{young}"[:-1], f"z{short}"[:-1])
    assert world.idle == {f"{ABC[:128]}young{young}"[:-1], f"z{short}"[:-1]}
    assert [note.request_id for note in read_notes(world.folder)] == ["c", "d"]
    assert len(world.rows("answers")) == 1
    world.engine.close()
