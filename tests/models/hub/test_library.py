"""What the hub refuses becomes an error that says what to do; and nothing but what was asked for is sent."""

import pytest
from huggingface_hub import constants

from pinyon.models.errors import (
    DownloadError,
    HubAccessError,
    HubBusyError,
    HubConnectionError,
    ModelError,
    ModelNotFoundError,
)
from pinyon.models.hub.address import Address
from pinyon.models.hub.repo import read_repo


def refusal_of(repo_id="owner/repo"):
    with pytest.raises(ModelError) as refusal:
        read_repo(Address(repo_id))
    assert str(refusal.value).isprintable()
    return refusal.value


def test_a_repository_that_is_not_there(hub):
    error = refusal_of()
    assert isinstance(error, ModelNotFoundError)
    assert "the hub has no repository owner/repo, or it is private: `pinyon search WORDS`" in str(error)
    assert "was sent" not in str(error)


def test_a_private_one_with_a_token_that_may_not_read_it(hub, monkeypatch):
    hub.add("owner/repo", {}, token="right")
    monkeypatch.setenv("HF_TOKEN", "other")
    assert "the one in HF_TOKEN was sent, which may not" in str(refusal_of())
    monkeypatch.setenv("HF_TOKEN", "right")
    assert read_repo(Address("owner/repo")).repo_id == "owner/repo"


def test_a_wrong_token_for_a_public_repository(hub, monkeypatch, tmp_path):
    hub.add("owner/repo", {})
    monkeypatch.setenv("HF_TOKEN", "wrong")
    error = refusal_of()
    assert isinstance(error, HubAccessError)
    assert (
        f"refused the token in HF_TOKEN: make a new one on {hub.url}/settings/tokens; a public repository needs none"
        in str(error)
    )
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("wrong")
    assert f"refused the token in {tmp_path / 'hf' / 'token'}" in str(refusal_of())


def test_a_token_that_cannot_be_sent(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "t\xf6ken")
    error = refusal_of()
    assert isinstance(error, HubAccessError)
    assert "the token in HF_TOKEN has characters that no token has" in str(error)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("status", "headers", "kind", "words"),
    [
        (403, {"X-Error-Code": "GatedRepo"}, HubAccessError, "owner/repo is gated: accept its licence on"),
        (403, {"X-Error-Message": "not yours"}, HubAccessError, "the hub forbids this (not yours)"),
        (429, {"Retry-After": "77"}, HubBusyError, "too many requests to the hub: try again in 77 s; with a token in HF_TOKEN"),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, HubBusyError, "try again later"),
        (503, {}, HubBusyError, "the hub is in trouble (status 503): try again later"),
        (418, {"X-Error-Message": "\x1b[2J" + "x" * 500}, DownloadError, "the hub answered with status 418: \\x1b[2Jxx"),
        (200, {}, DownloadError, "the hub gave an answer that cannot be used"),
    ],
)  # fmt: skip
def test_what_the_hub_refuses(hub, status, headers, kind, words):
    hub.faults.hub_refusal = (status, {name: value.replace("\x1b", "\\x1b") for name, value in headers.items()})
    error = refusal_of()
    assert type(error) is kind
    assert words in str(error)
    assert len(str(error)) < 400


def test_a_hub_that_cannot_be_reached(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    error = refusal_of()
    assert isinstance(error, HubConnectionError)
    assert "check the network and that http://127.0.0.1:9 can be reached" in str(error)


def test_offline_mode_asks_nothing(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set, so the hub is not asked" in str(refusal_of())
    assert hub.asked == []


def test_no_telemetry(hub):
    hub.add("owner/repo", {})
    read_repo(Address("owner/repo"))
    assert [one.path for one in hub.asked] == ["/api/models/owner/repo?blobs=true"]
    assert constants.HF_HUB_DISABLE_TELEMETRY
