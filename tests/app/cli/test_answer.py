"""How answers are printed: the exact bytes."""

import json
import sys
from types import SimpleNamespace

import pytest

from pinyon.app.cli.answer import JsonAnswer, JsonLinesAnswer, Stats, TextAnswer, WholeAnswer
from pinyon.app.errors import AnswerError
from pinyon.engine.events import Chunk, Finished, FinishReason, Timings, Usage

MODEL = SimpleNamespace(name="m", context_tokens=9, threads=1, why_no_disk="")
CODE = ("Here:\n``", "`sh\nls\n``", "`\nDone.")


def stats(reason=FinishReason.STOP):
    return Stats.of(MODEL, Finished((reason,), Usage(1, 5, 3), Timings(0, 0, 0), 7), 0.0)


def fed(answer, *texts, reasoning=""):
    answer.add(Chunk(0, "", reasoning=reasoning))
    for text in texts:
        answer.add(Chunk(0, text))
    return answer


@pytest.mark.parametrize("texts", [("a", "b"), ("a", "b\n"), ("", "\n"), ()])
def test_held_text_is_the_same_bytes_as_streamed_text(capsys, texts):
    fed(TextAnswer(), *texts).end(stats())
    streamed = capsys.readouterr()
    held = fed(WholeAnswer(), *texts)
    assert capsys.readouterr().out == ""
    held.end(stats())
    assert capsys.readouterr() == streamed
    fed(WholeAnswer(), *texts).break_off()
    assert capsys.readouterr() == streamed


def test_only_code_is_printed(capsys):
    fed(WholeAnswer(only_code=True), *CODE).end(stats())
    assert capsys.readouterr().out == "ls\n"
    fed(JsonAnswer(only_code=True), *CODE).end(stats())
    assert json.loads(capsys.readouterr().out)["text"] == "ls\n"


@pytest.mark.parametrize("make", [WholeAnswer, JsonAnswer])
@pytest.mark.parametrize(
    ("texts", "reason", "message"),
    [
        (("No code,", " sorry"), FinishReason.STOP, r"no whole code block; it begins: 'No code, sorry'"),
        (CODE[:2], FinishReason.LENGTH, r"ended early: length\); it begins: 'Here: ```sh ls ``'"),
    ],
)
def test_without_a_whole_code_block_stdout_stays_empty(capsys, make, texts, reason, message):
    with pytest.raises(AnswerError, match=message):
        fed(make(only_code=True), *texts).end(stats(reason))
    fed(make(only_code=True), *texts).break_off()
    assert capsys.readouterr().out == ""


def test_lines_of_json_come_as_the_answer_does_and_the_last_one_has_the_figures(capsys):
    fed(JsonLinesAnswer(), "a\n", "b", reasoning="hm").end(stats())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "a\n"},
        {"type": "text", "text": "b"},
    ]
    assert (lines[3]["type"], lines[3]["seed"], lines[3]["finish_reason"]) == ("end", 7, "stop")
    fed(JsonLinesAnswer(), "a").break_off()
    assert capsys.readouterr().out == '{"type":"text","text":"a"}\n'


@pytest.mark.parametrize("make", [TextAnswer, WholeAnswer])
def test_thoughts_can_be_hidden(capsys, monkeypatch, make):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fed(make(), "42", reasoning="hm").end(stats())
    assert capsys.readouterr() == ("42\n", "\x1b[2mhm\x1b[0m\n\n")
    fed(make(hide_thoughts=True), "42", reasoning="hm").end(stats())
    assert capsys.readouterr() == ("42\n", "")


@pytest.mark.parametrize("make", [JsonAnswer, JsonLinesAnswer])
def test_json_on_a_terminal_has_no_control_characters(capsys, monkeypatch, make):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    fed(make(), "\x9b2J\x7f\x1b[0m").end(stats())
    printed = capsys.readouterr().out
    assert "\ufffd2J\u2421\\u001b[0m" in printed
