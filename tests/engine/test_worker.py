"""A real worker under awkward load: long letters, mixed calls, failing native code."""

import asyncio
import gc
import os
import queue
import random
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from asking import answer, ask, config, end_of, ids_of, text_of
from fakes import hashed, make_engine, make_store, run_to_end, scripted, tidied
from tiny_models import write_tiny_bpe

from pinyon.engine import protocol
from pinyon.engine.cache_report import Miss
from pinyon.engine.config import LONG_TEXT_CHARS, EngineConfig
from pinyon.engine.cost_model import CostModel
from pinyon.engine.errors import ContextOverflowError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Chunk, Failed, FailureKind, Finished, FinishReason
from pinyon.engine.file_system import FileSystem
from pinyon.engine.request import Text
from pinyon.engine.shared_kv import SharedKv
from pinyon.engine.weights_digest import MEMORY_NAME, file_identity, weights_digest
from pinyon.engine.worker import Worker

LONG_TEXTS = {"letter": "A" * 30_000, "ideograph": "语" * 30_000, "spaces": " " * 100_000, "newlines": "\n" * 100_000}


@pytest.mark.parametrize("pre_tokenizer", ["gpt-4o", "tekken", "llama-bpe", "qwen2", "smollm", "default"])
async def test_long_runs_of_one_character_are_tokenised_or_refused(clients, tmp_path, pre_tokenizer):
    """Two of these pre-tokenizers overflow an ordinary stack."""
    client = clients(config(write_tiny_bpe(tmp_path / "m.gguf", pre_tokenizer, context=20_000), context_tokens=20_000))
    pid = await client.pid()
    for name, text in LONG_TEXTS.items():
        assert await client.detokenize(await client.tokenize([Text(text)])) == text
        assert end_of(await answer(client, ask(name, text))).kind is FailureKind.CONTEXT_OVERFLOW
    assert await client.pid() == pid


def test_tokenising_a_long_text_does_not_stop_the_streams(monkeypatch):
    sent, may_go_on = queue.SimpleQueue(), threading.Event()
    worker = Worker(EngineConfig(b"", 1), sent.put)
    engine, *_ = make_engine(scripted(a=b"answer"))
    prepared = engine.prepare(ask("a"))
    monkeypatch.setattr(engine, "tokenize", lambda _prompt: may_go_on.wait() and [1])
    loaded = SimpleNamespace(engine=engine)
    threading.Thread(target=worker._run_texts, args=(worker._texts, loaded), daemon=True).start()
    worker._commands.put(prepared)
    worker.receive(protocol.Tokenize(7, ()))
    worker._take_commands(SimpleNamespace(engine=engine), wait_s=0.0)
    while engine.busy:
        worker._send_events(engine.step())
    events = []
    while not events or not isinstance(events[-1], Finished):
        events += [event for _, event in sent.get(timeout=10).events]
    assert text_of(events) == "answer"
    assert sent.empty()
    may_go_on.set()
    assert sent.get(timeout=10) == protocol.TokenizeReply(7, (1,))


@pytest.fixture
def running(monkeypatch):
    """A worker whose engine thread runs a fake, what it has sent, and the engine's parts."""
    made = make_engine(hashed, cells=1024, store=make_store())
    sent = queue.SimpleQueue()
    worker = Worker(EngineConfig(b"", 1), sent.put)
    monkeypatch.setattr(worker, "_load", lambda: SimpleNamespace(engine=made.engine, info=None))
    monkeypatch.setattr("pinyon.engine.worker.start_thread", lambda _name, _body: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    sent.get(timeout=10)
    yield worker, sent, made
    worker.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_what_was_computed_is_stored_when_there_is_nothing_else_to_do(running, monkeypatch):
    monkeypatch.setattr("kv_compare.MOVE_S", 1.0)  # a block is dearer than all steps have paid for
    worker, sent, made = running
    worker._commands.put(made.engine.prepare(ask("a", "x" * 200, max_tokens=2)))
    while not isinstance(sent.get(timeout=10).events[-1][1], Finished):
        pass
    while made.kv._blocks.has_unsaved:  # the engine thread waits for nothing
        time.sleep(0.001)
    assert len(made.kv._store._ram) == 4


def test_a_worker_that_is_stopped_first_stores_what_it_has(running, monkeypatch):
    worker, sent, made = running
    monkeypatch.setattr(SharedKv, "save", lambda _self: None)
    worker._commands.put(made.engine.prepare(ask("a", "x" * 200)))
    while not any(isinstance(event, Chunk) for _, event in sent.get(timeout=10).events):
        pass
    worker.stop()
    assert len(made.kv._store._ram) >= 3


@pytest.mark.parametrize("is_usable", [True, False])
def test_until_the_disk_is_known_or_given_up_reports_say_so(tmp_path, is_usable):
    worker = Worker(EngineConfig(os.fsencode(tmp_path / "model"), 1), lambda _message: None)
    (tmp_path / "model").write_bytes(b"weights")
    if not is_usable:
        (tmp_path / "kv").write_bytes(b"no folder")
    made = make_engine(store=make_store())
    made.kv._store.awaits_disk = True

    def miss(name):
        *_, end = run_to_end(made.engine, ask(name, name * 9, max_tokens=1))[name]
        return end.cache.miss

    assert miss("a") is Miss.NOT_READY
    identity = file_identity(tmp_path / "model")
    loaded = SimpleNamespace(context=SimpleNamespace(kv_settings=()), file_identity=identity)
    worker._open_disk(os.fsencode(tmp_path / "kv"), loaded)
    worker._take_commands(SimpleNamespace(engine=made.engine, store=made.kv._store), wait_s=0.0)
    assert miss("b") is Miss.DIVERGED
    assert (made.engine._notes is not None) == is_usable
    made.engine.close()


def test_caps_that_were_told_before_the_disk_is_known_hold_for_it_too(tmp_path):
    sent = queue.SimpleQueue()
    worker = Worker(EngineConfig(os.fsencode(tmp_path / "model"), 1, kv_disk_cap_bytes=8 << 20), sent.put)
    (tmp_path / "model").write_bytes(b"weights")
    made = make_engine(store=(store := make_store()))
    loaded = SimpleNamespace(
        engine=made.engine,
        store=store,
        context=SimpleNamespace(kv_settings=()),
        file_identity=file_identity(tmp_path / "model"),
    )
    worker.receive(protocol.ResizeKv(3, 500, 2 << 20, 0))
    while sent.empty():
        worker._take_commands(loaded, wait_s=0.0)
    assert sent.get() == protocol.ResizeReply(3)
    assert (store._ram.cap_bytes, store.disk_cap_bytes) == (500, 0)
    worker._open_disk(os.fsencode(tmp_path / "kv"), loaded)
    worker._take_commands(loaded, wait_s=0.0)
    assert store.disk_cap_bytes == (2 << 20) - (8 << 20) // 8, "less what the notes may take"
    worker.receive(protocol.ResizeKv(4, 900, 10 << 20, 1 << 20))
    while sent.empty():
        worker._take_commands(loaded, wait_s=0.0)
    assert (store._ram.cap_bytes, store.disk_cap_bytes) == (900, (9 << 20) - (8 << 20) // 8)
    made.engine.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_the_first_request_waits_for_the_disk_of_a_known_model(tmp_path, monkeypatch, is_known):
    monkeypatch.setattr("pinyon.engine.worker.NEW_DISK_WAIT_S", 0.01)
    (model := tmp_path / "model").write_bytes(b"weights")
    (folder := tmp_path / "kv").mkdir()
    identity = file_identity(model)
    if is_known:
        weights_digest(model, identity, folder / MEMORY_NAME, FileSystem())
    made = make_engine(hashed, cells=1024, store=make_store())
    made.kv._store.awaits_disk = True
    sent, may_open = queue.SimpleQueue(), threading.Event()
    worker = Worker(EngineConfig(os.fsencode(model), 1, kv_folder=os.fsencode(folder), kv_disk_cap_bytes=1), sent.put)
    context = SimpleNamespace(kv_settings=())
    loaded = SimpleNamespace(
        engine=made.engine, store=made.kv._store, info=None, context=context, file_identity=identity
    )
    monkeypatch.setattr(worker, "_load", lambda: loaded)
    monkeypatch.setattr(gc, "freeze", lambda: None)

    def start(name, body):
        if name == "disk":
            threading.Thread(target=lambda: may_open.wait() and body(), daemon=True).start()

    monkeypatch.setattr("pinyon.engine.worker.start_thread", start)
    worker._commands.put(made.engine.prepare(ask("a", max_tokens=1)))
    threading.Thread(target=worker.run, daemon=True).start()
    sent.get(timeout=10)
    if is_known:
        threading.Timer(0.1, may_open.set).start()
    events = []
    while not events or not isinstance(events[-1], Finished):
        events += [event for _, event in sent.get(timeout=10).events]
    assert (events[-1].cache.miss is Miss.NOT_READY) == (not is_known)
    may_open.set()
    worker.stop()


def test_a_request_cancelled_before_it_was_prepared_tells_of_each_choice():
    worker = Worker(EngineConfig(b"", 1), lambda _message: None)
    engine, *_ = make_engine(scripted(a=b"answer"))
    worker.receive(protocol.Generate(ask("a", n=3)))
    ((name, finished),) = worker._obey(SimpleNamespace(engine=engine), protocol.Cancel("a"))
    assert (name, finished.reasons) == ("a", (FinishReason.CANCELLED,) * 3)
    assert worker._obey(SimpleNamespace(engine=engine), engine.prepare(ask("a", n=3))) == []


def next_reply(sent):
    while isinstance(message := sent.get(timeout=10), protocol.Events):
        pass
    return message


def test_what_a_conversation_left_is_forgotten_and_told(running):
    worker, sent, made = running
    for conversation in ("talk", None):
        worker._commands.put(
            made.engine.prepare(
                ask(f"r{conversation}", f"{conversation}" * 50, max_tokens=8, conversation=conversation)
            )
        )
    worker.receive(protocol.Forget(8, "nobody"))
    assert next_reply(sent) == protocol.ForgetReply(8, 0, 0)
    while made.engine.busy or made.kv._blocks.has_unsaved:
        time.sleep(0.001)
    worker.receive(protocol.Forget(9, "talk"))
    reply = next_reply(sent)
    assert (reply.call, reply.blocks) == (9, 4)
    worker.receive(protocol.Forget(10, None, time.time() + 1))
    assert next_reply(sent).blocks == 4
    assert [*made.kv._store._blocks()] == []


def test_what_is_on_disk_is_known_before_anything_is_forgotten():
    sent = queue.SimpleQueue()
    worker = Worker(EngineConfig(b"", 1), sent.put)
    worker.receive(protocol.Forget(1, "talk"))
    assert worker._commands.empty()
    worker._disk_is_settled.set_result(None)
    assert worker._commands.get_nowait() == protocol.Forget(1, "talk")


def test_a_request_that_is_being_prepared_leaves_nothing_either():
    worker = Worker(EngineConfig(b"", 1), lambda _message: None)
    made = make_engine(hashed, cells=1024, store=make_store())
    requests = [ask(name, name * 100, conversation=name) for name in ("talk", "else")]
    for request in requests:
        worker.receive(protocol.Generate(request))
    worker._obey(SimpleNamespace(engine=made.engine), protocol.Forget(1, "talk"))
    for request in requests:
        worker._obey(SimpleNamespace(engine=made.engine), made.engine.prepare(request))
    while made.engine.busy:
        made.engine.step()
    made.engine.tidy()
    assert {bytes(block.tokens)[:4] for block in made.kv._store._blocks() if block.start == 0} == {b"else"}


@pytest.mark.parametrize("was_prepared", [False, True], ids=["still", "just"])
def test_a_request_that_came_before_a_clear_leaves_nothing_also_if_it_was_being_prepared(monkeypatch, was_prepared):
    clock = SimpleNamespace(now_s=10.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    monkeypatch.setattr(time, "time", lambda: 1e9 + clock.now_s)
    worker = Worker(EngineConfig(b"", 1), lambda _message: None)
    made = make_engine(hashed, cells=1024, store=make_store(), clock=time.perf_counter)
    older, younger = ask("older", "older" * 50), ask("younger", "younger" * 50)
    worker.receive(protocol.Generate(older))
    clock.now_s, cleared_s = 30.0, 1e9 + 20.0
    if was_prepared:
        worker._obey(SimpleNamespace(engine=made.engine), made.engine.prepare(older))
    worker.receive(protocol.Generate(younger))
    worker._obey(SimpleNamespace(engine=made.engine), protocol.Forget(1, None, cleared_s))
    for request in [younger] if was_prepared else [older, younger]:
        worker._obey(SimpleNamespace(engine=made.engine), made.engine.prepare(request))
    while made.engine.busy:
        made.engine.step()
    tidied(made)
    assert {bytes(block.tokens)[:5] for block in made.kv._store._blocks() if block.start == 0} == {b"young"}


def test_an_estimate_is_made_between_steps_and_starts_nothing(running):
    worker, sent, made = running
    threading.Thread(
        target=worker._run_texts, args=(worker._texts, SimpleNamespace(engine=made.engine)), daemon=True
    ).start()
    request = ask("a", "x" * 200, max_tokens=2)
    worker.receive(protocol.MakeEstimate(7, request))
    assert next_reply(sent) == protocol.EstimateReply(7, Estimate(200, compute_s=CostModel().alone_s(200)))
    worker.receive(protocol.Generate(request))
    while not isinstance(sent.get(timeout=10).events[-1][1], Finished):
        pass
    worker.receive(protocol.MakeEstimate(8, request))
    assert next_reply(sent).estimate.resident == 199
    worker.receive(protocol.MakeEstimate(9, ask("b", "x" * 2000)))
    reply = next_reply(sent)
    assert (reply.call, reply.failed.kind) == (9, FailureKind.CONTEXT_OVERFLOW)


def test_an_estimate_waits_until_the_disk_is_known():
    worker = Worker(EngineConfig(b"", 1), lambda _message: None)
    engine, *_ = make_engine(hashed)
    worker._reply(SimpleNamespace(engine=engine), protocol.MakeEstimate(7, ask("a")))
    assert worker._commands.empty()
    worker._disk_is_settled.set_result(None)
    assert worker._commands.get_nowait().call == 7


def test_meters_count_also_what_is_being_prepared(running):
    worker, sent, _ = running
    worker.receive(protocol.Generate(ask("a", n=3)))
    worker.receive(protocol.ReadMeters(7))
    reply = next_reply(sent)
    assert (reply.call, reply.meters.cells, reply.meters.running, reply.meters.waiting) == (7, 1024, 0, 3)
    assert reply.meters.rss_bytes > 1 << 20


def test_what_cannot_be_deleted_is_told(monkeypatch):
    sent = queue.SimpleQueue()
    worker = Worker(EngineConfig(b"", 1), sent.put)
    engine, *_ = make_engine(hashed)
    failed = Future()
    failed.set_exception(OSError("Input/output error"))
    monkeypatch.setattr(SharedKv, "forgotten", lambda _self: failed)
    worker._obey(SimpleNamespace(engine=engine), protocol.Forget(1, "talk"))
    reply = sent.get_nowait()
    assert (reply.call, reply.failed.kind) == (1, FailureKind.ENGINE_ERROR)
    assert "Input/output error; try again" in reply.failed.message


async def test_mixed_calls_from_many_sides(clients, tiny):
    client = clients(config(tiny))
    pid = await client.pid()
    randomly = random.Random(3)

    async def one(number):
        await asyncio.sleep(randomly.random() / 4)
        text = f"call {number}"
        match number % 4:
            case 0:
                events = await answer(client, ask(f"r{number}", text, max_tokens=20, ignore_eos=True))
                return len(ids_of(events)) == end_of(events).usage.completion_tokens == 20
            case 1:
                return await client.detokenize(await client.tokenize([Text(text)])) == text
            case 2:
                stream = asyncio.create_task(answer(client, ask(f"r{number}", text, max_tokens=150, ignore_eos=True)))
                await asyncio.sleep(randomly.random() / 20)
                await client.cancel(f"r{number}")
                return isinstance(end_of(await stream), Finished)
            case _:
                return isinstance(end_of(await answer(client, ask(f"r{number}", "x" * 300))), Failed)

    assert all(await asyncio.gather(*(one(number) for number in range(200))))
    assert await client.pid() == pid


async def test_a_model_whose_state_is_damaged_fails_its_requests_only(clients, tmp_path):
    """Weights that are not numbers give logits that are not numbers."""
    path = write_tiny_bpe(tmp_path / "nan.gguf", "default", damaged=True)
    client = clients(config(path))
    pid = await client.pid()
    failed = end_of(await answer(client, ask("a")))
    assert failed.kind is FailureKind.ENGINE_ERROR
    assert "nan instead of a probability" in failed.message
    assert await client.pid() == pid


async def test_two_models_load_side_by_side_each_with_a_log_of_its_own(clients, tiny, tmp_path):
    both = [clients(config(tiny)), clients(config(write_tiny_bpe(tmp_path / "other.gguf", "default")))]
    await asyncio.gather(*(client.start() for client in both))
    logs = [(tmp_path / f"engine-{number}.log").read_text() for number in range(2)]
    assert [("tiny.gguf" in log, "other.gguf" in log) for log in logs] == [(True, False), (False, True)]
    ends = await asyncio.gather(*(answer(client, ask("a", max_tokens=5, ignore_eos=True)) for client in both))
    assert [end_of(events).usage.completion_tokens for events in ends] == [5, 5]


def test_a_long_text_does_not_hold_up_a_short_one():
    worker = Worker(EngineConfig(b"", 1), lambda _message: None)
    for call, text in enumerate(["x", "x" * (LONG_TEXT_CHARS + 1)]):
        worker.receive(protocol.Tokenize(call, (Text(text),)))
    assert [texts.get_nowait().call for texts in (worker._texts, worker._long_texts)] == [0, 1]
    assert worker._texts.empty()


async def test_a_text_far_beyond_the_context_is_refused_without_being_tokenised(clients, tiny):
    client = clients(config(tiny))
    with pytest.raises(ContextOverflowError, match="at least"):
        await client.tokenize([Text("x" * (8 << 20))])
