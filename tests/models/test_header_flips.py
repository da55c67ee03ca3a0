"""A2: a byte of a header is another one, and nobody comes to harm: refused, or loaded in a child that can say so."""

import random
from collections import Counter

import pytest
from loading_child import Loader
from split_models import split_gguf
from tiny_architectures import WRITERS
from tiny_models import write_tiny_bpe, write_tiny_llama

from pinyon.models.description import describe
from pinyon.models.errors import ModelError, ModelFileError
from pinyon.models.gguf_header import check_runnable, parse_header, read_header
from pinyon.models.gguf_reader import ValueType
from pinyon.models.memory.kv import KvChoice
from pinyon.models.memory.plan import Choice, memory_plan
from pinyon.models.memory.sizes import model_sizes
from pinyon.models.split_files import headers_of

from .gguf_files import Array, tiny


def sound_models(folder):
    yield write_tiny_llama(folder / "llama.gguf")
    yield write_tiny_bpe(folder / "bpe.gguf", "smollm")
    for name, write in WRITERS.items():
        yield write(folder / f"{name}.gguf")


def flipped(data, header_bytes, chance):
    changed = bytearray(data)
    changed[chance.randrange(header_bytes)] ^= chance.randrange(1, 256)
    return bytes(changed)


def outcome_of(data, path, loader):
    """What becomes of a file: Python refuses it, or llama.cpp gets it, in a child."""
    try:
        header = parse_header(data, len(data))
        check_runnable(header)
    except ModelFileError:
        return "refused"
    describe((header,))
    memory_plan(model_sizes((header,)), Choice(KvChoice(4096, 8, 512)))
    path.write_bytes(data)
    answer = loader.load(path)
    assert answer in {"loaded", "died"} or answer.startswith("cannot load")
    return answer if answer in {"loaded", "died"} else "cannot load"


def outcomes(folder, flips):
    chance = random.Random(7)
    counts = Counter()
    with Loader() as loader:
        models = [(model.name, model.read_bytes()) for model in sound_models(folder)]
        for number in range(flips):
            name, data = models[number % len(models)]
            header = parse_header(data, len(data))
            path = folder / f"flip-{number}-{name}"
            counts[outcome_of(flipped(data, header.data_offset, chance), path, loader)] += 1
            if path not in loader.deaths:
                path.unlink(missing_ok=True)
        return counts, loader.deaths


@pytest.mark.model
def test_some_flips(tmp_path):
    counts, deaths = outcomes(tmp_path, 100)
    assert deaths == []
    assert counts.total() == 100
    assert {"refused", "loaded"} <= counts.keys()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_flips(tmp_path):
    counts, deaths = outcomes(tmp_path, 10_000)
    print(counts)
    assert deaths == []
    assert counts.total() == 10_000


def outcomes_of_parts(folder, tiny, flips):
    chance = random.Random(11)
    parts = split_gguf(tiny, folder / "split", 3)
    sound = [(path.read_bytes(), read_header(path).data_offset) for path in parts]
    counts = Counter()
    with Loader() as loader:
        for number in range(flips):
            data, header_bytes = sound[number % 3]
            parts[number % 3].write_bytes(flipped(data, header_bytes, chance))
            try:
                check_runnable(*headers_of(parts[0]))
                counts[loader.load(parts[0]).split(" ")[0]] += 1
            except ModelError:
                counts["refused"] += 1
            parts[number % 3].write_bytes(data)
        return counts, loader.deaths


@pytest.mark.model
def test_some_flips_in_parts_of_a_split_model(tmp_path, tiny):
    counts, deaths = outcomes_of_parts(tmp_path, tiny, 150)
    assert deaths == []
    assert {"refused", "loaded"} <= counts.keys() <= {"refused", "loaded", "cannot"}


@pytest.mark.long
def test_thousands_of_flips_in_parts_of_a_split_model(tmp_path, tiny):
    counts, deaths = outcomes_of_parts(tmp_path, tiny, 3000)
    print(counts)
    assert deaths == []


@pytest.mark.model
def test_a_death_is_seen_and_the_next_file_is_loaded_all_the_same(tmp_path, tiny):
    """llama.cpp ends its process over a model of no blocks, which Python would have refused."""
    data = tiny.read_bytes()
    place = data.index(b"llama.block_count") + len(b"llama.block_count") + 4
    fatal = tmp_path / "fatal.gguf"
    fatal.write_bytes(data[:place] + bytes(4) + data[place + 4 :])
    with Loader() as loader:
        assert [loader.load(path) for path in (tiny, fatal, tiny)] == ["loaded", "died", "loaded"]
        assert loader.deaths == [fatal]


@pytest.mark.model
@pytest.mark.parametrize("misspelt", ["<0x-1>", "<0xZZ>", "<0x4 >", ""])
def test_a_byte_that_is_none_is_refused_also_in_plamo2_s_vocabulary(tmp_path, misspelt):
    """A4: the same file with right bytes gets further."""
    spelt = [f"<0x{byte:02X}>" for byte in range(256)]
    wrong = [misspelt if token == "<0x41>" else token for token in spelt]
    answers = []
    with Loader() as loader:
        for number, tokens in enumerate((spelt, wrong)):
            path = tmp_path / f"{number}.gguf"
            path.write_bytes(plamo2(tokens))
            answers.append(loader.load(path))
        assert loader.deaths == []
    assert "is not set" not in answers[0]
    assert "Byte token for <0x65> is not set" in answers[1]


def plamo2(tokens):
    """A header with PLaMo 2's vocabulary, whose bytes are tokens 1 to 256."""
    texts = ("<unk>", *tokens)
    file = tiny(tokens=len(texts)).with_value("tokenizer.ggml.model", ValueType.STRING, "plamo2")
    return (
        file.with_value("llama.attention.layer_norm_rms_epsilon", ValueType.FLOAT32, 1e-5)
        .with_value("tokenizer.ggml.tokens", ValueType.ARRAY, Array(ValueType.STRING, texts))
        .with_value("tokenizer.ggml.token_type", ValueType.ARRAY, Array(ValueType.INT32, (2,) + (6,) * len(tokens)))
        .encode()
    )
