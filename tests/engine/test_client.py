"""The supervisor against workers that behave badly, and against real ones that are killed."""

import asyncio
import contextlib
import errno
import io
import os
import re
import signal
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from asking import answer, ask, config, end_of, ids_of, text_of
from tiny_models import write_tiny_llama

from pinyon.engine import worker_process
from pinyon.engine.client import EngineState
from pinyon.engine.errors import (
    ContextOverflowError,
    DoesNotFitError,
    EngineCrashedError,
    EngineError,
    InvalidRequestError,
    ModelLoadError,
    ModelQuarantinedError,
)
from pinyon.engine.events import Failed, FailureKind, Finished, FinishReason, Removed
from pinyon.engine.request import Text
from pinyon.engine.worker_process import worker_environment

LONG = {"max_tokens": 200, "ignore_eos": True}


def fake_worker(after_start):
    """The command of a worker that reads its start, then runs these lines; `send` and `read` speak the protocol."""
    script = f"""
import os, sys, time
from pinyon.engine import protocol
from pinyon.engine.config import EngineInfo
from pinyon.engine.request import SamplingParams
INFO = EngineInfo("fake", 100, 100, 10, "", "", (), (), (), None, SamplingParams(), 1)
def send(message): os.write(1, protocol.encode_frame(message))
def read(): return protocol.decode_to_worker(protocol.read_payload(sys.stdin.buffer))
read()
{after_start}
"""
    return (sys.executable, "-c", script)


READY = "send(protocol.Ready(protocol.VERSION, INFO))"


async def test_a_model_answers(clients, tiny):
    client = clients(config(tiny))
    fractions = []
    info = await client.start(fractions.append)
    events = await answer(client, ask("a", max_tokens=20, ignore_eos=True))
    assert end_of(events).usage.completion_tokens == 20 == len(ids_of(events))
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert (info.context_tokens, info.trained_context_tokens) == (256, 256)


async def test_many_requests_at_once_each_get_their_own_answer(clients, tiny):
    client = clients(config(tiny))
    requests = [ask(f"r{n}", f"prompt {n}", max_tokens=1 + n % 7, ignore_eos=True) for n in range(80)]
    answers = await asyncio.gather(*(answer(client, request) for request in requests))
    assert [end_of(events).usage.completion_tokens for events in answers] == [r.max_tokens for r in requests]


async def test_a_worker_killed_in_mid_stream_ends_the_stream_and_the_next_request_works(clients, tiny):
    client = clients(config(tiny))
    before = await client.pid()
    events = []
    async with asyncio.timeout(30):
        async for event in client.generate(ask("a", **LONG)):
            if not events:
                os.kill(before, signal.SIGSTOP)  # the answer must still be under way when the kill comes
                os.kill(before, signal.SIGKILL)
            events.append(event)
        failed = end_of(events)
        again = await answer(client, ask("b", max_tokens=5, ignore_eos=True))
    assert failed.kind is FailureKind.ENGINE_CRASH
    assert "SIGKILL" in failed.message
    assert end_of(again).usage.completion_tokens == 5
    assert await client.pid() != before


async def test_every_open_stream_and_call_ends_when_the_worker_dies(clients):
    client = clients(config_of_nothing(), command=fake_worker(f"{READY}\nfor _ in range(3): read()\nos.abort()"))
    streams = [answer(client, ask(name)) for name in "ab"]
    *ends, call = await asyncio.gather(*streams, client.tokenize([Text("x")]), return_exceptions=True)
    assert [end_of(events).kind for events in ends] == [FailureKind.ENGINE_CRASH] * 2
    assert isinstance(call, EngineCrashedError)
    assert "SIGABRT" in str(call)


def config_of_nothing():
    return config(Path("nothing.gguf"))


async def test_what_no_worker_holds_is_not_loaded_to_be_forgotten(clients):
    client = clients(config_of_nothing(), command=fake_worker("os.abort()"))
    assert await client.forget("talk") == Removed()
    assert client.state is EngineState.STOPPED


async def test_a_worker_is_told_what_to_forget_and_tells_what_has_gone(clients):
    script = f"""{READY}
send(protocol.NoDisk("no room"))
for wanted in [("talk", 0.0), (None, 5.0)]:
    message = read()
    assert (message.conversation, message.before_s) == wanted
    send(protocol.ForgetReply(message.call, 3, 400))
message = read()
send(protocol.CallFailed(message.call, Failed("engine_error", "not all of it")))
read()
os.abort()"""
    command = fake_worker(script.replace("send(", "from pinyon.engine.events import Failed\nsend(", 1))
    client = clients(config_of_nothing(), command=command)
    await client.start()
    assert await client.forget("talk") == Removed(3, 400)
    assert await client.forget(before_s=5.0) == Removed(3, 400)
    assert client.why_no_disk == "no room"
    with pytest.raises(EngineError, match="not all of it"):
        await client.forget("talk")
    with pytest.raises(EngineCrashedError):
        await client.forget("talk")


async def test_a_worker_is_told_other_caps_and_those_after_it_begin_with_them(clients):
    script = f"""{READY}
message = read()
assert (message.ram_cap_bytes, message.disk_cap_bytes, message.unused_bytes) == (100, 200, 30)
send(protocol.ResizeReply(message.call))
read()
os.abort()"""
    client = clients(config_of_nothing(), command=fake_worker(script))
    await client.resize_kv(1, 2, 0)
    assert client.state is EngineState.STOPPED, "nothing is loaded for that"
    await client.start()
    await client.resize_kv(100, 200, 30)
    with pytest.raises(EngineCrashedError):
        await client.resize_kv(50, 60, 30)
    assert (client._config.kv_ram_cap_bytes, client._config.kv_disk_cap_bytes) == (50, 60)


async def test_meters_load_nothing_and_wait_for_no_load(clients):
    client = clients(config_of_nothing(), command=fake_worker(f"time.sleep(0.5)\n{READY}\nread()\nos.abort()"))
    assert await client.meters() is None
    loading = asyncio.create_task(client.start())
    while client.state is not EngineState.LOADING:
        await asyncio.sleep(0)
    assert await client.meters() is None
    await loading
    assert await client.meters() is None, "the worker has died"


async def test_a_real_worker_tells_its_meters_and_what_it_would_find(clients, tiny):
    client = clients(config(tiny, kv_ram_cap_bytes=1 << 28))
    await client.start()
    request = ask("a", "Once upon a time " * 5, max_tokens=5, ignore_eos=True)
    assert (await client.estimate(request)).cached == 0
    end = end_of(await answer(client, request))
    foretold = await client.estimate(request)
    assert (foretold.prompt_tokens, foretold.resident) == (end.usage.prompt_tokens, end.usage.prompt_tokens - 1)
    assert foretold.is_measured
    assert end_of(await answer(client, msgspec.structs.replace(request, id="b"))).cache.resident == foretold.resident
    meters = await client.meters()
    assert (meters.cells, meters.running, meters.waiting, meters.held_cells) == (256, 0, 0, 0)
    assert meters.idle_cells >= foretold.resident
    assert meters.rss_bytes == pytest.approx(psutil.Process(await client.pid()).memory_info().rss, rel=0.5)
    with pytest.raises(ContextOverflowError, match=r"the prompt has [\d,]+ tokens") as refusal:
        await client.estimate(ask("c", "x" * 300))
    assert refusal.value.figures() == {"prompt_tokens": 300, "context_tokens": 256}
    assert str(refusal.value) == end_of(await answer(client, ask("c", "x" * 300))).message


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV", "SIGBUS", "SIGKILL"])
async def test_a_model_that_kills_its_worker_twice_is_quarantined(clients, tmp_path, name):
    """A3: two starts, and no third one."""
    started = tmp_path / "started"
    dies = f"open({str(started)!r}, 'a').write('x')\nos.kill(os.getpid(), {int(signal.Signals[name])})\ntime.sleep(60)"
    client = clients(config_of_nothing(), command=fake_worker(dies))
    with pytest.raises(ModelQuarantinedError, match=rf"nothing\.gguf is quarantined: .* died 2 times .* {name}"):
        await client.start()
    failed = end_of(await answer(client, ask("a")))
    assert failed.kind is FailureKind.LOAD_FAILED
    assert started.read_text() == "xx"


async def test_a_model_that_kills_its_worker_once_is_loaded_by_the_second(clients, tmp_path):
    started = tmp_path / "started"
    script = f"if not os.path.exists({str(started)!r}):\n open({str(started)!r}, 'w')\n os.abort()\n{READY}\nread()"
    client = clients(config_of_nothing(), command=fake_worker(script))
    assert (await client.start()).build == "fake"


async def test_a_header_that_makes_llama_cpp_abort_costs_two_workers_and_nothing_else(clients, tmp_path, tiny):
    path = write_tiny_llama(tmp_path / "bad.gguf")
    data = path.read_bytes()
    at = data.index(b"llama.block_count") + len(b"llama.block_count") + 4
    path.write_bytes(data[:at] + (0).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(ModelQuarantinedError, match="SIGABRT"):
        await clients(config(path)).start()
    other = clients(config(tiny))
    assert isinstance(end_of(await answer(other, ask("a", max_tokens=3))), Finished)


async def test_what_llama_cpp_refuses_is_one_line_with_its_reason(clients, tmp_path, tiny):
    path = tmp_path / "unknown.gguf"
    path.write_bytes(tiny.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(ModelLoadError, match="unknown model architecture: 'lamma'") as refusal:
        await clients(config(path)).start()
    assert "\n" not in str(refusal.value)
    assert type(refusal.value) is ModelLoadError


async def test_more_context_than_the_model_was_trained_for_does_not_fit(clients, tiny):
    with pytest.raises(DoesNotFitError, match=r"1,000 tokens .* up to 256"):
        await clients(config(tiny, context_tokens=1000)).start()


@pytest.mark.parametrize(
    "script",
    [
        f"{READY}\nread()\nos.write(1, b'\\xff' * 4)\ntime.sleep(60)",
        f"{READY}\nread()\nos.write(1, b'\\x02\\x00\\x00\\x00zz')\ntime.sleep(60)",
        f"{READY}\nread()\n{READY}\ntime.sleep(60)",
        f"{READY}\nread()\nos.write(1, b'\\x09\\x00\\x00\\x00half')\nsys.exit()",
    ],
    ids=["length", "payload", "wrong message", "cut"],
)
async def test_garbage_from_a_worker_is_its_end(clients, script):
    client = clients(config_of_nothing(), command=fake_worker(script))
    async with asyncio.timeout(30):
        failed = end_of(await answer(client, ask("a")))
    assert failed.kind is FailureKind.ENGINE_CRASH


async def test_a_worker_of_another_version_is_refused(clients):
    client = clients(config_of_nothing(), command=fake_worker("send(protocol.Ready(99, INFO))\nread()"))
    with pytest.raises(EngineError, match="a Ready that nobody waits for"):
        await client.start()


async def test_closing_a_stream_cancels_its_request(clients, tiny):
    client = clients(config(tiny))
    async with contextlib.aclosing(client.generate(ask("a", **LONG))) as stream:
        await anext(stream)
    full = [answer(client, ask(f"r{n}", "x" * 200, max_tokens=50, ignore_eos=True)) for n in range(3)]
    assert [end_of(events).usage.completion_tokens for events in await asyncio.gather(*full)] == [50] * 3
    again = await answer(client, ask("a", max_tokens=2, ignore_eos=True))  # its id is free again
    assert end_of(again).usage.completion_tokens == 2


async def test_cancel_gives_the_stream_its_end_with_what_was_generated(clients, tiny):
    client = clients(config(tiny))
    events = []
    async for event in client.generate(ask("a", **LONG)):
        if not events:
            await client.cancel("a")
        events.append(event)
    finished = end_of(events)
    assert finished.reasons == (FinishReason.CANCELLED,)
    assert finished.usage.completion_tokens == len(ids_of(events)) < 200


async def test_a_cancel_that_overtakes_its_request_still_ends_it(clients, tiny):
    client = clients(config(tiny))
    await client.start()
    stream = asyncio.create_task(answer(client, ask("a", "x" * 200, **LONG)))
    await asyncio.sleep(0)
    await client.cancel("a")
    assert end_of(await stream).reasons == (FinishReason.CANCELLED,)


async def test_an_id_in_use_is_refused_and_its_owner_goes_on(clients, tiny):
    client = clients(config(tiny))
    first = asyncio.create_task(answer(client, ask("a", max_tokens=50, ignore_eos=True)))
    await client.start()
    await asyncio.sleep(0)
    second = end_of(await answer(client, ask("a")))
    assert (second.kind, "still running" in second.message) == (FailureKind.INVALID_REQUEST, True)
    assert end_of(await first).usage.completion_tokens == 50


@pytest.mark.parametrize("text", ["half \ud800", "x" * (65 << 20)], ids=["surrogate", "huge"])
async def test_a_prompt_that_no_frame_holds_fails_alone(clients, tiny, text):
    client = clients(config(tiny))
    failed = end_of(await answer(client, ask("a", text)))
    assert failed.kind is FailureKind.INVALID_REQUEST
    assert isinstance(end_of(await answer(client, ask("b", max_tokens=2))), Finished)


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(clients, tiny):
    client = clients(config(tiny))
    for length, kind in ((255, Finished), (256, Failed), (300, Failed)):
        end = end_of(await answer(client, ask("a", "x" * length)))
        assert isinstance(end, kind)
        if kind is Failed:
            assert end.kind is FailureKind.CONTEXT_OVERFLOW
            assert end.data == {"prompt_tokens": length, "context_tokens": 256}
            assert f"{length} tokens" in end.message
            assert "256" in end.message


async def test_tokens_there_and_back(clients, tiny):
    client = clients(config(tiny))
    text = "naïve 🫠\n"
    assert await client.detokenize(await client.tokenize([Text(text)])) == text
    with pytest.raises(InvalidRequestError, match="token id 99999"):
        await client.detokenize([99999])


async def test_close_ends_streams_and_the_process(clients, tiny):
    client = clients(config(tiny))
    pid = await client.pid()
    stream = asyncio.create_task(answer(client, ask("a", **LONG)))
    await asyncio.sleep(0)
    await client.close()
    end_of(await stream)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert end_of(await answer(client, ask("b"))).kind is FailureKind.ENGINE_CRASH


async def test_close_during_a_load_leaves_no_process(clients):
    client = clients(
        config_of_nothing(), command=fake_worker("print(os.getpid(), file=sys.stderr, flush=True)\nread()")
    )
    load = asyncio.create_task(client.start())
    await asyncio.sleep(0.5)
    async with asyncio.timeout(30):
        await client.close()
    with pytest.raises(EngineCrashedError):
        await load


def test_a_worker_gets_no_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("NVIDIA_API_KEY", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = worker_environment()
    assert not [name for name, value in environment.items() if "secret" in value]
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["PATH"]) == ("1", os.environ["PATH"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_running_worker_has_no_secrets_no_core_dumps_and_no_sockets(clients, tiny, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pid = await clients(config(tiny)).pid()
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == 500, (
        "where memory runs out it goes before the service"
    )
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert b"hf_secret" not in environment
    assert re.search(r"Max core file size +0 +0 ", limits)
    assert not [link for link in links if link.startswith("socket:")]


async def test_native_messages_go_to_the_log_and_text_to_the_stream(clients, tiny, tmp_path):
    client = clients(config(tiny))
    events = await answer(client, ask("a", max_tokens=5, ignore_eos=True))
    log = (tmp_path / "engine-0.log").read_text()
    assert "llama_model_loader" in log
    assert "llama" not in text_of(events)


@pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG and /proc")
async def test_a_worker_dies_with_its_service(tiny, tmp_path):
    script = f"""
import asyncio, os
from pathlib import Path
from pinyon.engine.client import EngineClient
from pinyon.engine.config import EngineConfig
async def main():
    client = EngineClient(EngineConfig({bytes(tiny)!r}, 2), Path({str(tmp_path / "log")!r}))
    print(await client.pid(), flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    service = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    worker = int((await service.communicate())[0])
    async with asyncio.timeout(30):
        while os.path.exists(f"/proc/{worker}") and " Z " not in Path(f"/proc/{worker}/stat").read_text():
            await asyncio.sleep(0.05)


async def test_a_request_that_a_crash_ended_is_not_tried_again(clients, tmp_path):
    received = tmp_path / "received"
    script = f"{READY}\nm = read()\nopen({str(received)!r}, 'a').write(m.request.id)\nos.abort()"
    client = clients(config_of_nothing(), command=fake_worker(script))
    assert end_of(await answer(client, ask("a"))).kind is FailureKind.ENGINE_CRASH
    await client.start()  # the next worker is ready, and nobody sent it anything
    assert received.read_text() == "a"
    assert end_of(await answer(client, ask("b"))).kind is FailureKind.ENGINE_CRASH
    assert received.read_text() == "ab"


async def test_a_worker_that_nobody_used_is_replaced_by_the_next_request(clients, tmp_path):
    """Otherwise one that dies of itself would be started again and again."""
    started = tmp_path / "started"
    client = clients(config_of_nothing(), command=fake_worker(f"open({str(started)!r}, 'a').write('x')\n{READY}"))
    await client.start()
    await asyncio.sleep(0.5)
    assert started.read_text() == "x"
    end_of(await answer(client, ask("a")))
    assert started.read_text().startswith("xx")


async def test_a_worker_that_cannot_be_started_fails_the_request_and_the_next_tries_again(clients, tiny, tmp_path):
    from pinyon.engine.client import EngineClient

    blocked = tmp_path / "logs"
    blocked.write_text("a file where the folder should be")
    client = EngineClient(config(tiny), blocked / "engine.log")
    failed = end_of(await answer(client, ask("a")))
    assert (failed.kind, "cannot be started" in failed.message) == (FailureKind.ENGINE_ERROR, True)
    blocked.unlink()
    assert isinstance(end_of(await answer(client, ask("b", max_tokens=2))), Finished)
    await client.close()


async def test_a_lost_log_does_not_hide_a_death(clients, tiny, tmp_path):
    client = clients(config(tiny))
    pid = await client.pid()
    events = []
    async with asyncio.timeout(30):
        async for event in client.generate(ask("a", **LONG)):
            if not events:
                os.kill(pid, signal.SIGSTOP)
                (tmp_path / "engine-0.log").unlink()
                os.kill(pid, signal.SIGKILL)
            events.append(event)
    assert "SIGKILL" in end_of(events).message


async def test_a_reply_that_no_frame_holds_fails_alone(clients, tiny):
    client = clients(config(tiny))
    pid = await client.pid()
    tag = 6  # "<tool>", six bytes for a token
    with pytest.raises(InvalidRequestError, match="the limit is 67,108,864"):
        await client.detokenize([tag] * 11_500_000)
    assert await client.pid() == pid


class UnreadableLog(io.BytesIO):
    def read(self, _size=-1):
        raise OSError(errno.EIO, "Input/output error")


def test_the_last_line_of_a_log():
    assert worker_process._last_line(io.BytesIO(b"first\nlast \n\n")) == "ends with: last"
    assert worker_process._last_line(io.BytesIO()) == "ends with: nothing"
    assert worker_process._last_line(UnreadableLog()) == "cannot be read: [Errno 5] Input/output error"


# Signs of life


@pytest.fixture
def impatient(monkeypatch):
    """A sign of life is wanted all the time, and for a second before the worker is given up."""
    monkeypatch.setattr(worker_process, "PING_S", 0.05)
    monkeypatch.setattr(worker_process, "LATE_S", 0.2)
    return {"answer_within_s": 1.0}


async def test_a_worker_that_stands_still_is_replaced_and_nobody_waits_for_ever(clients, tiny, impatient):
    client = clients(msgspec.structs.replace(config(tiny), **impatient))
    await client.start()
    before, states, told = await client.pid(), set(), []
    async with contextlib.aclosing(client.generate(ask("a", max_tokens=200, ignore_eos=True))) as events:
        async for event in events:
            told.append(event)
            if not states:
                os.kill(before, signal.SIGSTOP)
                states.add(client.state)

                async def look():
                    while client.state is not EngineState.LOADING:
                        states.add(client.state)
                        await asyncio.sleep(0.01)

                looking = asyncio.create_task(look())
    assert isinstance(told[-1], Failed)
    assert told[-1].kind is FailureKind.ENGINE_STUCK
    assert "no sign of life for 1 s" in told[-1].message
    assert EngineState.STUCK in states
    await looking
    assert isinstance((await answer(client, ask("b", max_tokens=3, ignore_eos=True)))[-1], Finished)
    assert await client.pid() != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


async def test_a_worker_that_is_only_slow_is_left_alone(clients, impatient):
    """It answers each ping after half of the time that it has, and the request in the end."""
    slow = f"""
{READY}
request = read().request
from pinyon.engine.events import Finished, FinishReason, Timings, Usage
for _ in range(4):
    ping = read()
    time.sleep(0.5)
    send(protocol.Pong(ping.call))
end = Finished((FinishReason.STOP,), Usage(1, 1), Timings(0, 0, 0), 1)
send(protocol.Events(((request.id, end),)))
read()
"""
    client = clients(msgspec.structs.replace(config(Path("none")), **impatient), command=fake_worker(slow))
    assert isinstance((await answer(client, ask("a")))[-1], Finished)


async def test_who_has_nothing_to_do_is_rarely_asked_for_a_sign_of_life(clients, impatient):
    idle = f"{READY}\nread()\nos._exit(3)"
    client = clients(msgspec.structs.replace(config(Path("none")), **impatient), command=fake_worker(idle))
    await client.start()
    await asyncio.sleep(0.3)
    assert client.state is EngineState.READY


async def test_a_worker_that_stands_still_while_nobody_asks_is_noticed_too(clients, tiny, impatient, monkeypatch):
    monkeypatch.setattr(worker_process, "IDLE_PING_S", 0.1)
    client = clients(msgspec.structs.replace(config(tiny), **impatient))
    await client.start()
    before = await client.pid()
    os.kill(before, signal.SIGSTOP)
    async with asyncio.timeout(10):
        while client.state is EngineState.READY:
            await asyncio.sleep(0.01)
        assert client.state is EngineState.STUCK
        while client.state is EngineState.STUCK:
            await asyncio.sleep(0.01)
    assert isinstance((await answer(client, ask("b", max_tokens=3, ignore_eos=True)))[-1], Finished)
    assert await client.pid() != before


async def test_a_sign_of_life_that_came_while_this_process_stood_still_counts(clients, tiny, impatient):
    client = clients(msgspec.structs.replace(config(tiny), **impatient))
    await client.start()
    before, asking = await client.pid(), asyncio.create_task(answer(client, ask("a", max_tokens=200, ignore_eos=True)))
    while client._process._pinged_at is None and not asking.done():
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the ping goes out
    time.sleep(1.5)  # as if it was stopped
    assert isinstance((await asking)[-1], Finished)
    assert await client.pid() == before


# What steps cost


async def test_what_steps_cost_is_measured_once_and_known_at_the_next_start(clients, tiny, tmp_path):
    folders = {"kv_folder": os.fsencode(tmp_path / "kv"), "kv_disk_cap_bytes": 1 << 24}
    kept = msgspec.structs.replace(config(tiny), calibration_folder=os.fsencode(tmp_path / "costs"), **folders)
    first = clients(kept)
    await first.start()
    async with asyncio.timeout(20):
        while (await first.meters()).curve is None:
            await asyncio.sleep(0.05)
        await first.close()
        (file,) = (tmp_path / "costs").iterdir()
        learned = file.read_bytes()
        second = clients(kept)
        await second.start()
        while (curve := (await second.meters()).curve) is None:
            await asyncio.sleep(0.01)
    assert msgspec.json.encode(curve) == learned
