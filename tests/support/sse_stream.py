"""A strict reader of the HTTP door's streams, and one form for streamed and whole answers, so that tests can compare them."""

import json
from dataclasses import dataclass, field

_CHAT, _TEXT = "chat.completion.chunk", "text_completion"


@dataclass
class SseStream:
    """What a body of server-sent events holds."""

    chunks: list[dict] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    error: dict | None = None
    done: bool = False


@dataclass(frozen=True)
class Choice:
    text: str
    reasoning: str | None
    logprobs: object
    finish_reason: str


@dataclass(frozen=True)
class Answer:
    """What a client can see of an answer, but for ids and times, and for what was cached: an answer is the same without."""

    choices: tuple[Choice, ...]
    usage: dict | None
    ignored: list[str]
    seed: int | None


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs), f"a name stands twice: {[name for name, _ in pairs]}"
    return dict(pairs)


def _not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def strict_json(text: str) -> dict:
    return json.loads(text, object_pairs_hook=unique, parse_constant=_not_json)


def read_stream(raw: bytes) -> SseStream:
    """Check every byte: events of one line, each followed by an empty one; an error or [DONE] is the last."""
    stream = SseStream()
    text = raw.decode("utf-8")
    assert "\r" not in text, "lines end in LF"
    assert "\0" not in text, "NUL in a stream"
    assert text == "" or text.endswith("\n\n"), f"the last event is not whole: {text[-80:]!r}"
    for block in text.split("\n\n")[:-1]:
        assert not stream.done, f"{block!r} comes after [DONE]"
        assert stream.error is None, f"{block!r} comes after the error"
        assert "\n" not in block, f"more than one line: {block!r}"
        if block.startswith(": "):
            stream.comments.append(block[2:])
        elif block == "data: [DONE]":
            stream.done = True
        else:
            assert block.startswith("data: {"), f"neither data nor comment: {block!r}"
            _take(stream, strict_json(block.removeprefix("data: ")))
    return stream


def _take(stream: SseStream, document: dict) -> None:
    if "error" not in document:
        stream.chunks.append(document)
        return
    assert list(document) == ["error"]
    assert {"message", "type", "param", "code"} <= document["error"].keys()
    stream.error = document["error"]


def check_chunks(stream: SseStream, *, wants_usage: bool = False) -> None:
    """Check what every stream promises, however it ended."""
    heads = [{name: chunk[name] for name in ("id", "object", "created", "model")} for chunk in stream.chunks]
    assert all(head == heads[0] for head in heads), "id, object, created and model stay the same"
    assert not heads or heads[0]["object"] in {_CHAT, _TEXT}
    finished: set[int] = set()
    for chunk in stream.chunks:
        assert isinstance(chunk["choices"], list)
        assert ("usage" in chunk) == wants_usage, "usage is there if it was asked for"
        for choice in chunk["choices"]:
            assert choice["index"] not in finished, "a choice goes on after its end"
            assert choice["finish_reason"] in {None, "stop", "length"}
            assert ("delta" in choice) == (chunk["object"] == _CHAT)
            if choice["finish_reason"] is not None:
                finished.add(choice["index"])
    with_usage = [chunk for chunk in stream.chunks if chunk.get("usage") is not None]
    if not stream.done:
        assert stream.error is not None, "neither [DONE] nor an error: the stream was cut off"
        assert not with_usage
        return
    with_choices = [chunk for chunk in stream.chunks if chunk["choices"]]
    assert finished, "an answer has a choice"
    assert finished == {choice["index"] for chunk in with_choices for choice in chunk["choices"]}, "an end is missing"
    assert [chunk for chunk in with_choices if "pinyon" in chunk] == with_choices[-1:], "the last one tells the extras"
    assert with_usage == (stream.chunks[-1:] if wants_usage else []), "the usage comes once, at the end"
    assert stream.chunks == with_choices + with_usage, "only usage comes without choices"


def streamed_answer(stream: SseStream, *, wants_usage: bool = False) -> Answer:
    """Put a finished stream together."""
    check_chunks(stream, wants_usage=wants_usage)
    assert stream.done, stream.error
    parts = [choice for chunk in stream.chunks for choice in chunk["choices"]]
    choices = [
        _joined([part for part in parts if part["index"] == index])
        for index in sorted({part["index"] for part in parts})
    ]
    extras = next(chunk["pinyon"] for chunk in stream.chunks if "pinyon" in chunk)
    return _answer(choices, stream.chunks[-1].get("usage"), extras)


def _answer(choices: list[Choice], usage: dict | None, extras: dict) -> Answer:
    cached = sum(extras["cache"][tier] for tier in ("resident", "ram", "disk"))
    if usage is not None:
        details = {**usage}.pop("prompt_tokens_details")
        assert list(details) == ["cached_tokens"]
        assert cached <= details["cached_tokens"] < usage["prompt_tokens"], "the last token is never cached"
        usage = {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
    return Answer(tuple(choices), usage, extras["ignored"], extras["seed"])


def _joined(parts: list[dict]) -> Choice:
    logprobs: dict[str, list] | None = None
    for part in parts:
        if part["logprobs"] is not None:
            logprobs = logprobs or {}
            for name, values in part["logprobs"].items():
                logprobs[name] = logprobs.get(name, []) + values if values is not None else None
    if "text" in parts[0]:
        return Choice("".join(part["text"] for part in parts), None, logprobs, parts[-1]["finish_reason"])
    deltas = [part["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}, "a choice begins with its role"
    assert all(delta.keys() <= {"content", "reasoning_content"} for delta in deltas[1:])
    assert all(value for delta in deltas[1:] for value in delta.values()), "nothing is sent for nothing"
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    text = "".join(delta.get("content", "") for delta in deltas)
    return Choice(text, reasoning or None, logprobs, parts[-1]["finish_reason"])


def whole_answer(document: dict, *, wants_usage: bool = True) -> Answer:
    """The same of an answer that was not streamed."""
    choices = []
    for index, choice in enumerate(document["choices"]):
        assert choice["index"] == index
        if "message" in choice:
            message = choice["message"]
            assert (message["role"], message["refusal"]) == ("assistant", None)
            shown = message["content"], message.get("reasoning_content")
        else:
            shown = choice["text"], None
        choices.append(Choice(*shown, choice["logprobs"], choice["finish_reason"]))
    return _answer(choices, document["usage"] if wants_usage else None, document["pinyon"])
