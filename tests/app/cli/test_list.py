"""`pinyon list`: models on stdout, what could come on stderr."""

import json

import pytest
from command_line import pinyon
from other_stores import hub_file, ollama_model
from split_models import split_gguf


@pytest.fixture
def listed(tmp_path):
    def run(*arguments):
        return pinyon(tmp_path / "pinyon", *arguments, HOME=str(tmp_path), OLLAMA_MODELS="", check=True)

    return run


def hints(done):
    return [line for line in done.stderr.decode().splitlines() if "pinyon add" in line]


def test_a_split_model_is_one_line_with_the_size_of_all_parts(listed, tiny, tmp_path):
    parts = split_gguf(tiny, tmp_path / "big", 3)
    listed("add", parts[1])
    size = sum(path.stat().st_size for path in parts)
    assert listed("list").stdout.decode() == f"big  {size / 1e6:>8.0f} MB  added      {parts[0]}\n"
    (record,) = json.loads(listed("list", "--json").stdout)
    assert (record["size_bytes"], len(record["parts"])) == (size, 2)


def test_what_could_be_added_is_told_where_it_is(listed, tiny, tmp_path):
    root = tmp_path / ".ollama" / "models"
    ollama_model(root, "one", tiny.read_bytes())
    assert hints(listed("list")) == ["`pinyon add --from ollama` adds 1 model from Ollama's store, where they lie"]
    ollama_model(root, "two", b"GGUF")
    for part in split_gguf(tiny, tmp_path / "big", 3):
        hub_file(tmp_path / ".cache" / "huggingface" / "hub", "owner/big", part.name, part.read_bytes())
    assert hints(listed("list")) == [
        "`pinyon add --from ollama` adds 2 models from Ollama's store, where they lie",
        "`pinyon add --from hub` adds 1 model from the Hugging Face cache, where they lie",
    ]
    assert listed("list", "--json").stderr == b""
    listed("add", "--from", "hub")
    listed("add", "--from", "ollama", "one")
    assert hints(listed("list")) == ["`pinyon add --from ollama` adds 1 model from Ollama's store, where they lie"]
