"""The folder of all blocks: what is there for one root key, and what others have of the same tokens."""

import sqlite3
import threading

import pytest
from faulty_files import settle
from hypothesis import given
from hypothesis import strategies as st

from pinyon.engine.block import Block
from pinyon.engine.block_disk import BlockDisk
from pinyon.engine.block_file import chain_key
from pinyon.engine.cache_notes import CacheNotes
from pinyon.engine.kv_folder import open_tier, resized, size_bytes, unused_bytes

CAP_BYTES = 1 << 20
BEGINNING = Block(b"n" * 32, None, 0, ())


def block_of(*tokens):
    return Block(chain_key(BEGINNING.key, tokens), BEGINNING, 0, tokens, 100, 0.5, bytes(100))


@pytest.fixture
def opened(tmp_path):
    tiers = []

    def open_for(weights, *settings, cap_bytes=CAP_BYTES):
        (tmp_path / "model").write_bytes(weights)
        tiers.append(open_tier(tmp_path / "kv", tmp_path / "model", settings, cap_bytes))
        return tiers[-1]

    yield open_for
    for tier in tiers:
        tier.disk.close()
        tier.notes.close()


def write(tier, *blocks):
    for block in blocks:
        tier.disk.write(block)
    settle(tier.disk)


def test_each_root_key_finds_its_own_blocks_and_the_keys_of_the_others(opened):
    ours, theirs = block_of(1, 2, 3), block_of(4, 5)
    first = opened(b"weights", "f16")
    assert (first.found, first.elsewhere) == ([], frozenset())
    write(first, ours)
    other_settings = opened(b"weights", "q8_0")
    assert (other_settings.found, other_settings.elsewhere) == ([], {ours.key})
    write(other_settings, theirs)
    assert opened(b"other weights", "f16").elsewhere == {ours.key, theirs.key}
    first.disk.close()
    again = opened(b"weights", "f16")
    assert ([header.key for header in again.found], again.elsewhere) == ([ours.key], {theirs.key})


def test_what_a_running_engine_has_is_neither_deleted_nor_counted_by_another(opened, tmp_path):
    running, ended = opened(b"weights"), opened(b"other weights")
    write(running, block_of(1, 2, 3))
    write(ended, block_of(4, 5))
    assert opened(b"third").cap_bytes == opened(b"fourth").cap_bytes, "all of its own cap, whatever others have"
    ended.disk.close()
    assert opened(b"fifth", cap_bytes=100).elsewhere == {block_of(1, 2, 3).key}, "the one that nobody uses gave way"
    running.disk.close()
    opened(b"sixth", cap_bytes=100)
    assert len([*(tmp_path / "kv").glob("*/*.kv")]) == 0


def test_two_engines_with_the_same_weights_do_not_write_into_one_folder(opened):
    first = opened(b"weights")
    with pytest.raises(OSError, match="another engine with the same weights"):
        opened(b"weights")
    first.disk.close()
    assert opened(b"weights").found == []


def test_files_of_another_kind_are_no_blocks(opened, tmp_path):
    opened(b"weights")
    (own,) = (tmp_path / "kv").glob("*/")
    (own / "no-key.kv").write_bytes(b"x")
    (own / f"{'ab' * 32}.new").write_bytes(b"x")
    assert opened(b"other weights").elsewhere == frozenset()


def fails(error):
    def fail(*_arguments):
        raise error

    return fail


@pytest.mark.parametrize(
    ("owner", "method", "error"),
    [
        (BlockDisk, "scan", OSError("the folder cannot be read")),
        (CacheNotes, "noted", sqlite3.OperationalError("disk I/O error")),
        (CacheNotes, "answers", sqlite3.OperationalError("disk I/O error")),
        ("pinyon.engine.kv_folder", "_keys_elsewhere", OSError("the folder cannot be read")),
        ("pinyon.engine.cache_notes", "_opened_or_begun", OSError("read-only")),
    ],
    ids=["files", "notes", "answers", "others", "begin"],
)
def test_what_cannot_be_opened_leaves_no_threads(opened, monkeypatch, owner, method, error):
    before = {*threading.enumerate()}
    with monkeypatch.context() as patched:
        where = (f"{owner}.{method}",) if isinstance(owner, str) else (owner, method)
        patched.setattr(*where, fails(error))
        with pytest.raises(type(error), match=str(error)):
            opened(b"weights")
    assert {*threading.enumerate()} <= before
    assert opened(b"weights").found == []


def test_what_no_engine_uses_is_counted(opened, tmp_path):
    running, ended = opened(b"weights"), opened(b"other weights")
    write(running, block_of(1, 2, 3))
    before = unused_bytes(tmp_path / "kv")
    write(ended, block_of(4, 5))
    ended.disk.close()
    assert before == 0
    assert unused_bytes(tmp_path / "kv") == size_bytes(ended.disk._folder) > 0


@given(st.lists(st.tuples(st.sampled_from(["come", "leave"]), st.integers(0, 3)), max_size=30))
def test_the_cap_holds_whoever_comes_and_leaves(steps):
    """Models with equal parts of a cap: what may be written, with what others have left, is never more than the cap."""
    cap_bytes, own, left = 1000, {}, {}

    def share(models):
        for name, held_bytes in own.items():
            own[name] = resized(held_bytes, cap_bytes // models, sum(left.values()))

    for what, name in steps:
        if what == "come" and name not in own:
            share(len(own) + 1)
            left.pop(name, None)
            part = cap_bytes // (len(own) + 1)
            while sum(left.values()) > part // 2:
                left.pop(next(iter(left)))
            own[name] = part - sum(left.values())
        elif what == "leave" and name in own:
            left[name] = own.pop(name)
            share(max(1, len(own)))
        assert sum(own.values()) + sum(left.values()) <= cap_bytes


def test_one_that_is_alone_may_have_all_that_others_have_not_left():
    assert resized(own_bytes=300, cap_bytes=1000, unused_bytes=200) == 800
    assert resized(own_bytes=800, cap_bytes=500, unused_bytes=500) == 500
    assert resized(own_bytes=300, cap_bytes=400, unused_bytes=350) == 300
