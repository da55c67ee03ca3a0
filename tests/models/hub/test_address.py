"""Addresses as people write them."""

import pytest

from pinyon.models.errors import ModelNotFoundError
from pinyon.models.hub.address import Address, is_address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("owner/Repo-GGUF", Address("owner/Repo-GGUF")),
        ("owner/repo/", Address("owner/repo")),
        ("owner/repo:Q4_K_M", Address("owner/repo", None, "Q4_K_M")),
        ("owner/repo:latest", Address("owner/repo")),
        ("owner/repo:q8/m-00001-of-00002.gguf", Address("owner/repo", None, "q8/m-00001-of-00002.gguf")),
        ("owner/repo@v1:Q4_0", Address("owner/repo", "v1", "Q4_0")),
        ("hf.co/owner/repo:Q4_0", Address("owner/repo", None, "Q4_0")),
        ("HuggingFace.co/owner/repo", Address("owner/repo")),
        ("https://huggingface.co/owner/repo", Address("owner/repo")),
        ("https://huggingface.co/owner/repo/tree/main", Address("owner/repo")),
        ("https://huggingface.co/owner/repo/tree/main/Q8_0", Address("owner/repo", None, "Q8_0")),
        ("https://huggingface.co/owner/repo/blob/main/a/x.gguf", Address("owner/repo", None, "a/x.gguf")),
        ("https://hf.co/owner/repo/resolve/v2/x%20y.gguf?download=true", Address("owner/repo", "v2", "x y.gguf")),
        ("huggingface.co/owner/repo/resolve/main/x.gguf", Address("owner/repo", None, "x.gguf")),
        ("hf://owner/repo@v3/x.gguf", Address("owner/repo", "v3", "x.gguf")),
    ],
)
def test_every_way_to_write_one(text, address):
    assert is_address(text)
    assert parse_address(text) == address


def test_the_host_of_the_endpoint_is_one_of_the_hub(hub):
    assert parse_address(f"{hub.url}/owner/repo:latest") == Address("owner/repo")
    assert parse_address(f"{hub.url}/owner/repo:Q4_0") == Address("owner/repo", None, "Q4_0")
    assert parse_address(f"{hub.url}/owner/repo/blob/v1/x.gguf") == Address("owner/repo", "v1", "x.gguf")


@pytest.mark.parametrize(
    "text",
    [
        "hf.co/owner", "owner/repo/settings", "https://example.com/owner/repo", "https://huggingface.co/datasets/owner/repo",
        "owner/..", "../repo", "owner/con", "owner/repo.", "a b/c", "/owner/repo", "owner\\repo/x", "owner/re\npo", "owner/repo:",
    ],
)  # fmt: skip
def test_what_is_none_says_how_to_write_one(text):
    with pytest.raises(ModelNotFoundError, match=r"is no model's address .*: write OWNER/REPO, ") as refusal:
        parse_address(text)
    assert str(refusal.value).isprintable()


def test_a_name_of_the_catalogue_is_no_address():
    assert not is_address("qwen2.5-coder:0.5b")
