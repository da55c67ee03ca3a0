"""The search asks for GGUF repositories by words, in the order of downloads."""

from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

from pinyon.models.errors import DownloadError, HubBusyError
from pinyon.models.hub.search import SearchResult, search


def test_what_the_hub_knows_of_the_most_downloaded(hub):
    hub.add("a/Small-Llama-GGUF", {}, downloads=5, likes=2, gated="auto", parameters=1_235_814_432)
    hub.add("b/Llama-GGUF", {}, downloads=70, tags=("gguf",))
    hub.add("c/Llama", {}, downloads=900, tags=("safetensors",))
    hub.add("d/Gemma-GGUF", {}, downloads=9)
    updated = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    assert search("llama", 10) == (
        SearchResult("b/Llama-GGUF", None, 70, 0, updated, None, is_gated=False),
        SearchResult("a/Small-Llama-GGUF", 1_235_814_432, 5, 2, updated, "apache-2.0", is_gated=True),
    )
    (asked,) = hub.asked
    query = parse_qs(urlsplit(asked.path).query)
    assert (query["filter"], query["sort"], query["limit"]) == (["gguf"], ["downloads"], ["10"])
    assert [result.repo_id for result in search("llama", 1)] == ["b/Llama-GGUF"]
    assert search("nothing like it", 10) == ()


def test_a_busy_hub_is_told_at_once(hub):
    hub.faults.hub_refusal = (429, {"Retry-After": "3600"})
    with pytest.raises(HubBusyError, match="try again in 3600 s"):
        search("llama", 10)
    assert len(hub.asked) == 1


def test_an_answer_of_another_kind_is_told(hub):
    hub.add("a/Llama-GGUF", {}, parameters="many")
    (found,) = search("llama", 10)
    assert found.parameters is None
    hub.repos["a/Llama-GGUF"].tags = ("gguf", 7)
    with pytest.raises(DownloadError, match="cannot be used"):
        search("llama", 10)
