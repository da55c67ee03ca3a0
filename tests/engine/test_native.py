"""llama.cpp itself behind the handles: the binding, the log, cells, and what a decode gives."""

import io
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from architecture_zoo import ZOO
from asking import GREEDY, config, text_of
from tiny_models import TAG, TURN_END, VOCABULARY, write_tiny_llama

from pinyon.engine import native
from pinyon.engine.context_shape import MAX_BATCH_ROWS
from pinyon.engine.device import Device, DeviceKind
from pinyon.engine.engine import Prepared
from pinyon.engine.errors import BindingError, ModelLoadError, NativeError
from pinyon.engine.events import Finished, FinishReason
from pinyon.engine.loader import load_engine
from pinyon.engine.meters import Vram
from pinyon.engine.native import Context, Model, NativeLog, RowBuffer
from pinyon.engine.request import GenerateRequest, SamplingParams, Text


def load(path, **fields):
    return load_engine(config(path, **fields), path, NativeLog(io.StringIO()))


@pytest.fixture
def loaded(tiny):
    made = load(tiny)
    yield made
    made.close()


def run(loaded, *requests):
    """Submit requests together; return each one's events."""
    events = {request.id: [] for request in requests}
    for request in requests:
        loaded.engine.submit(loaded.engine.prepare(request))
    while loaded.engine.busy:
        for name, event in loaded.engine.step():
            events[name].append(event)
    return events


def ask(name, text="Once upon a time", **fields):
    return GenerateRequest(name, (Text(text, special=True),), **{"sampling": GREEDY, "max_tokens": 20, **fields})


def test_the_installed_binding_is_the_pinned_one():
    assert native.PINNED_VERSION in native.check_binding()


def test_a_binding_without_a_symbol_is_refused(monkeypatch):
    monkeypatch.delattr(native.lib, "llama_memory_seq_rm")
    with pytest.raises(BindingError, match=rf"without llama_memory_seq_rm: run `pip install .*{native.PINNED_VERSION}"):
        native.check_binding()


def test_a_binding_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(native, "version", lambda _name: "0.3.35")
    with pytest.raises(BindingError, match=r"found 0\.3\.35"):
        native.check_binding()


def test_a_file_that_is_no_model_is_refused_with_llama_cpp_s_reason(tmp_path):
    path = tmp_path / "a b.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelLoadError, match=r"cannot load .*a b\.gguf: \S+"):
        Model(path, NativeLog(io.StringIO()), lambda _fraction: True)


@pytest.fixture
def ggml():
    """A CPU, a GPU, one that is a part of a CPU, and an accelerator."""

    def memory(device, free, total):
        free._obj.value, total._obj.value = 100 * device, 1000

    return SimpleNamespace(
        ggml_backend_dev_count=lambda: 4,
        ggml_backend_dev_get=lambda index: index,
        ggml_backend_dev_type=lambda device: device,
        ggml_backend_dev_name=lambda device: b"GPU%d" % device,
        ggml_backend_dev_description=lambda device: b"number %d \xff" % device,
        ggml_backend_dev_memory=memory,
    )


def test_devices_are_all_that_ggml_has(ggml):
    kinds = (DeviceKind.CPU, DeviceKind.GPU, DeviceKind.INTEGRATED_GPU, DeviceKind.ACCELERATOR)
    assert native.backend_devices(ggml) == tuple(
        Device(f"GPU{number}", f"number {number} \ufffd", kind, 100 * number, 1000) for number, kind in enumerate(kinds)
    )


def test_video_memory_is_that_of_the_gpus(ggml, monkeypatch):
    found = native.backend_devices(ggml)
    monkeypatch.setattr(native, "backend_devices", lambda: found)
    assert native.video_memory() == (Vram("GPU1", 900, 1000), Vram("GPU2", 800, 1000))


def test_where_devices_cannot_be_asked_for_none_are_told():
    assert native.backend_devices(SimpleNamespace()) == ()


def test_the_binding_can_be_asked_about_devices():
    cpu = next(device for device in native.backend_devices() if device.kind is DeviceKind.CPU)
    assert cpu.name
    assert cpu.description
    assert cpu.total_bytes > 1 << 20


def test_a_load_can_be_stopped(tiny):
    with pytest.raises(ModelLoadError):
        Model(tiny, NativeLog(io.StringIO()), lambda _fraction: False)


@pytest.mark.parametrize(("built_for", "copies"), [("AVX512 = 1 | AMX_INT8 = 1", False), ("AVX512 = 1", True)])
def test_no_weights_are_copied_for_amx(tiny, monkeypatch, built_for, copies):
    given = []
    load = native.lib.llama_model_load_from_file

    def loaded(path, params):
        given.append(params.use_extra_bufts)
        return load(path, params)

    monkeypatch.setattr(native.lib, "llama_print_system_info", built_for.encode)
    monkeypatch.setattr(native.lib, "llama_model_load_from_file", loaded)
    Model(tiny, NativeLog(io.StringIO()), lambda _progress: True).close()
    assert given == [copies]


def test_the_log_gets_native_lines_and_the_reason_is_forgotten_once_told(tmp_path):
    stream = io.StringIO()
    log = NativeLog(stream)
    with pytest.raises(ModelLoadError):
        Model(tmp_path / "missing.gguf", log, lambda _fraction: True)
    assert "missing.gguf" in stream.getvalue()
    assert log.reason() == "llama.cpp gave no reason"


@pytest.fixture
def context(tiny):
    log = NativeLog(io.StringIO())
    model = Model(tiny, log, lambda _fraction: True)
    made = Context(model, log, cells=256, sequence_ids=4, batch_rows=MAX_BATCH_ROWS, threads=2)
    yield made
    made.close()
    model.close()


def decode(context, tokens, *, sequence=0, start=0):
    """Compute tokens of one sequence; return the last one's logits."""
    buffer, rows = RowBuffer(MAX_BATCH_ROWS), len(tokens)
    buffer.tokens[:rows] = tokens
    buffer.positions[:rows] = range(start, start + rows)
    buffer.sequence_ids[:rows] = sequence
    buffer.wants_logits[:rows] = 0
    buffer.wants_logits[rows - 1] = 1
    context.decode(buffer, rows)
    return context.logits(1)[0].copy()


def test_rows_reach_llama_cpp_with_their_token_position_and_sequence(context):
    alone = decode(context, [10, 11, 12])
    assert np.array_equal(decode(context, [10, 11, 12], sequence=1), alone)
    assert not np.array_equal(decode(context, [10, 11, 13], sequence=2), alone)
    assert not np.array_equal(decode(context, [12], sequence=3), alone)
    context.remove_sequence(3)
    # The same tokens in two decodes: other row counts, so close and not equal.
    decode(context, [10, 11], sequence=3)
    assert np.allclose(decode(context, [12], sequence=3, start=2), alone, atol=1e-3)


def test_prompts_are_computed_with_as_many_threads_as_answers(context):
    assert native.lib.llama_n_threads(context._handle) == native.lib.llama_n_threads_batch(context._handle) == 2


def test_a_wrong_position_is_refused(context):
    decode(context, [10, 11])
    with pytest.raises(NativeError, match="llama_decode returned -1"):
        decode(context, [12], start=7)


def test_cells_are_counted_by_llama_cpp_and_come_back(context):
    empty = context.state_bytes()
    decode(context, list(range(20, 60)))
    one = context.state_bytes()
    decode(context, list(range(20, 60)), sequence=1)
    two = context.state_bytes()
    context.remove_sequence(1)
    assert context.state_bytes() == one
    context.remove_sequence(0)
    assert context.state_bytes() == empty < one < two


def test_vocabulary(loaded):
    table = loaded.model.vocabulary
    assert table.size == VOCABULARY
    assert [table.is_eog(token) for token in (TURN_END, TAG)] == [True, False]
    assert table.piece(TURN_END) == b""
    assert b"".join(map(table.piece, table.tokenize("é 🫠".encode(), parse_special=False))) == "é 🫠".encode()
    assert table.tokenize(b"<|im_end|>", parse_special=True) == [TURN_END]
    assert TURN_END not in table.tokenize(b"<|im_end|>", parse_special=False)


def test_a_batch_gives_each_request_what_it_gets_alone(loaded):
    requests = [ask(f"r{n}", f"Story {n}: ", ignore_eos=True) for n in range(5)]
    alone = [run(loaded, request)[request.id] for request in requests]
    together = run(loaded, *requests)
    # Equal up to the shape of the computation: the first tokens, before rounding can tip a choice.
    for request, events in zip(requests, alone, strict=True):
        assert text_of(together[request.id])[:3] == text_of(events)[:3]
        counts = [
            (end.usage.prompt_tokens, end.usage.completion_tokens) for end in (together[request.id][-1], events[-1])
        ]
        assert counts[0] == counts[1]


def test_random_traffic_with_cancels_leaves_no_cell_behind(tiny):
    loaded = load(tiny)
    baseline = loaded.context.state_bytes()
    randomly = random.Random(1)
    open_ids: list[str] = []
    ends = []
    for number in range(100):
        request = ask(f"r{number}", "x" * randomly.randint(1, 200), max_tokens=randomly.randint(1, 200))
        loaded.engine.submit(loaded.engine.prepare(request))
        open_ids.append(request.id)
        for _ in range(randomly.randint(0, 3)):
            ends += [event for _, event in loaded.engine.step() if isinstance(event, Finished)]
        ends += [event for _, event in loaded.engine.cancel(randomly.choice(open_ids)) if isinstance(event, Finished)]
    for request_id in open_ids:
        ends += [event for _, event in loaded.engine.cancel(request_id) if isinstance(event, Finished)]
    assert len(ends) == 100
    assert sum(end.reasons == (FinishReason.CANCELLED,) for end in ends) > 50
    assert loaded.engine._kv.held_cells == 0
    assert loaded.engine._kv.make_room(loaded.info.context_tokens)
    assert loaded.context.state_bytes() == baseline
    loaded.close()


@pytest.mark.parametrize(
    "extra", [{"presence_penalty": 1.5}, {"repeat_penalty": 1.3}, {"logit_bias": ((40, 5.0),)}, {}]
)
def test_a_seed_gives_the_same_answer_again(loaded, extra):
    sampling = SamplingParams(temperature=1.0, seed=42, **extra)
    other = ask("other", "something else", sampling=SamplingParams(seed=7))
    first = run(loaded, ask("a", sampling=sampling))["a"]
    run(loaded, other)
    second = run(loaded, ask("a", sampling=sampling))["a"]
    assert text_of(first) == text_of(second)
    assert second[-1].seed == 42


def test_without_a_seed_answers_differ_and_each_can_be_repeated(loaded):
    free = SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0)
    runs = [run(loaded, ask("a", sampling=free))["a"] for _ in range(4)]
    assert len({text_of(events) for events in runs}) > 1
    seeded = SamplingParams(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=runs[0][-1].seed)
    assert text_of(run(loaded, ask("a", sampling=seeded))["a"]) == text_of(runs[0])


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, SamplingParams()),
        (
            {"general.sampling.temp": 0.25, "general.sampling.top_k": 7},
            SamplingParams(temperature=0.25, top_k=7),
        ),
        ({"general.sampling.top_p": 17.0, "general.sampling.min_p": 0.5}, SamplingParams(min_p=0.5)),
    ],
)
def test_the_file_s_own_sampling_comes_before_the_defaults(tmp_path, metadata, expected):
    loaded = load(write_tiny_llama(tmp_path / "m.gguf", metadata=metadata))
    assert loaded.info.sampling == expected
    loaded.close()


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("text", ["<s>hello", "hello"])
def test_one_bos_where_the_model_wants_one(tmp_path, adds_bos, text):
    loaded = load(write_tiny_llama(tmp_path / "m.gguf", add_bos=adds_bos))
    from_template = loaded.vocab.encode([Text(text, special=True)])
    typed_by_user = loaded.vocab.encode([Text(text)])
    bos = 1
    assert from_template.count(bos) == (1 if adds_bos or text.startswith("<s>") else 0)
    assert typed_by_user.count(bos) == (1 if adds_bos else 0)
    loaded.close()


def test_every_token_that_ends_generation_ends_it_unseen(loaded):
    for token in (2, TURN_END):
        bias = SamplingParams(temperature=0, logit_bias=((token, 100.0),))
        events = run(loaded, ask("a", sampling=bias))["a"]
        assert (text_of(events), events[-1].reasons) == ("", (FinishReason.STOP,))
        assert events[-1].usage.completion_tokens == 0


@pytest.mark.model
def test_smollm2_says_what_it_says_through_a_bare_loop(smollm2: Path):
    """The same greedy tokens as the shortest possible use of the C API, prompt in one decode of the same rows."""
    log = NativeLog(io.StringIO())
    loaded = load(smollm2, context_tokens=512)
    prompt = loaded.vocab.encode(
        [Text("<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n", special=True)]
    )
    model = Model(smollm2, log, lambda _fraction: True)
    context = Context(model, log, cells=512, sequence_ids=64, batch_rows=MAX_BATCH_ROWS, threads=2)
    expected = [int(decode(context, prompt).argmax())]
    while len(expected) < 24:
        expected.append(int(decode(context, expected[-1:], start=len(prompt) + len(expected) - 1).argmax()))
    request = GenerateRequest("a", (Text(loaded.vocab.decode(prompt)),), GREEDY, 24, ignore_eos=True)
    loaded.engine.submit(Prepared(request, prompt, []))
    text = ""
    while loaded.engine.busy:
        text += text_of(event for _, event in loaded.engine.step())
    assert text == loaded.vocab.decode(expected)
    assert re.search("red|blue|green", text, re.IGNORECASE)
    for made in (context, model, loaded):
        made.close()


def test_experts_can_be_told_to_stay_in_ram(tmp_path, monkeypatch):
    monkeypatch.setattr(NativeLog, "_DEBUG", None)
    text = io.StringIO()
    path = ZOO["qwen3moe"](128).write(tmp_path / "experts.gguf")
    Model(path, NativeLog(text), lambda _fraction: True, cpu_expert_layers=1).close()
    told = re.findall(r"tensor (\S+) .* overridden to CPU", text.getvalue())
    assert sorted(told) == [f"blk.0.ffn_{name}_exps.weight" for name in ("down", "gate", "up")]


def test_what_a_model_takes_of_memory_is_known_once_it_is_loaded(tiny, tmp_path):
    with (tmp_path / "log").open("w") as log:
        loaded = load_engine(config(tiny), tiny, NativeLog(log))
    taken = {(each.purpose, each.place): each.size_bytes for each in loaded.info.buffers}
    loaded.close()
    layers, heads, head, cells = 2, 2, 16, 256
    kv = layers * cells * heads * 2 * head * 2
    assert taken["KV", "CPU"] == pytest.approx(kv, abs=0.005 * 2**20)
    assert {purpose for purpose, _ in taken} == {"model", "KV", "compute", "output"}
    assert ("model", "CPU_Mapped") in taken
