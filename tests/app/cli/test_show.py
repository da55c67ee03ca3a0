"""`pinyon show`: what a header says, safe to print."""

import hashlib
import json

import gguf
import pytest
from command_line import assert_refused, pinyon
from split_models import split_gguf
from tiny_models import CHATML, CONTEXT, VOCABULARY, write_tiny_llama


def shown(home, *arguments):
    return pinyon(home, "show", *arguments, check=True).stdout.decode()


def test_a_model_is_shown_by_name_and_by_path(tmp_path, tiny):
    pinyon(tmp_path, "add", tiny, check=True)
    lines = shown(tmp_path, "tiny").splitlines()
    assert lines == shown(tmp_path, tiny).splitlines()
    rows = {line[:13].strip(): line[13:] for line in lines}
    assert rows["architecture"] == "llama"
    assert rows["context"] == f"{CONTEXT} tokens, as trained"
    assert rows["KV"] == "a token: 0.2 KiB as f16"
    assert rows["vocabulary"] == f"{VOCABULARY} tokens (llama)"
    assert rows["template"] == f"{len(CHATML)} characters (--template shows it)"
    assert rows["licence"] == "not said in the file"
    assert rows["file"] == str(tiny)
    assert rows["sha256"] == "unknown"
    assert any(line.split()[:1] == ["attention"] and line.endswith("F32 0.1 MB") for line in lines)
    assert "  general.name = tiny" in lines
    assert f"  tokenizer.ggml.tokens = {VOCABULARY} of STRING" in lines


def test_as_json_all_of_it_is_there(tmp_path, tiny):
    parts = split_gguf(tiny, tmp_path / "big", 3)
    about = json.loads(shown(tmp_path, parts[2], "--json"))
    assert [file["path"] for file in about["files"]] == list(map(str, parts))
    assert [file["size_bytes"] for file in about["files"]] == [path.stat().st_size for path in parts]
    assert [file["sha256"] for file in about["files"]] == [None] * 3
    assert (about["name"], about["source"], about["context_tokens"]) == ("big", "path", CONTEXT)
    assert about["kv_bytes_per_token"] == {"f16": 256}
    assert about["chat_template"] == CHATML
    assert {group["group"] for group in about["groups"]} >= {
        "attention",
        "feed forward",
        "norms",
        "embeddings",
        "output",
    }
    sizes = [share["size_bytes"] for group in about["groups"] for share in group["types"]]
    assert sum(sizes) == about["tensor_bytes"]
    assert about["metadata"]["llama.block_count"] == 2
    assert about["metadata"]["tokenizer.ggml.tokens"] == {"type": "STRING", "count": VOCABULARY}


def test_the_template_alone(tmp_path, tiny):
    assert shown(tmp_path, tiny, "--template") == CHATML + "\n"
    bare = write_tiny_llama(tmp_path / "bare.gguf", template=None)
    assert_refused(pinyon(tmp_path, "show", bare, "--template"), 1, "bare has no chat template")


def test_a_digest_that_is_known_is_shown(tmp_path, tiny):
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
    blob = tmp_path / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir()
    blob.write_bytes(tiny.read_bytes())
    assert f"\nsha256       {digest}, by its name in Ollama's store\n" in shown(tmp_path, blob)


@pytest.fixture
def hostile(tmp_path):
    path = tmp_path / "hostile.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("[bold]x\x1b]52;c;SGk=\x07\n\u202eevil\x9b2J")
    writer.add_license("\x1b[2Jmit")
    writer.add_description("one\r\ntwo\x08\x1bc " + "long " * 1000)
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.add_chat_template("{{ 1 }}\x1b[31m")
    import numpy as np

    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_nothing_in_a_file_drives_the_terminal(tmp_path, hostile):
    """R46: metadata are other people's text."""
    text = shown(tmp_path, hostile)
    assert all(line.isprintable() for line in text.splitlines())
    assert r"[bold]x\x1b]52;c;SGk=\x07\n\u202eevil\x9b2J" in text
    assert max(map(len, text.splitlines())) < 200
    about = json.loads(shown(tmp_path, hostile, "--json"))
    assert about["license"] == "\x1b[2Jmit"
