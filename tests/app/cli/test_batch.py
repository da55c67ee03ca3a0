"""`pinyon batch` over a fake model: what it writes, what it asks again, how it ends."""

import asyncio
import json
import os
import signal
import sys

import pytest
from command_line import pinyon
from fake_backend import ChatModel, called, faked
from fake_service import says

from pinyon.app.cli.batch import AT_ONCE, command
from pinyon.app.cli.failures import ExitCode
from pinyon.app.errors import UsageError
from pinyon.engine.errors import EngineCrashedError


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("PINYON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def echo(_id, tokens, generated):
    """The prompt's last letter, three times."""
    text = bytes(token for token in tokens if token < 256)
    letter = text.split(b"user: ")[1][0]
    return letter if generated < 3 else says("")(None, None, 0)


@pytest.fixture
def batch(here, monkeypatch):
    """Write an input, run the batch over a model, return the answers by id."""

    def run(*lines, arguments=(), model=None, code=ExitCode.OK):
        (here / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
        faked(monkeypatch, model or ChatModel(echo))
        assert called(command, "in.jsonl", "out.jsonl", "-m", "fake", *arguments) == code
        return written(here)

    return run


def written(here):
    lines = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    return {line["id"]: line["text"] for line in lines}


def test_each_line_is_answered(batch, here, capsys):
    assert batch({"prompt": "a"}, {"id": "x", "prompt": "b"}) == {1: "aaa", "x": "bbb"}
    assert capsys.readouterr() == ("", "pinyon: 2 of 2 answered, 0 failed\n")
    first = json.loads((here / "out.jsonl").read_text().splitlines()[0])
    assert list(first)[:3] == ["id", "asked", "text"]
    assert (first["model"], first["finish_reason"], first["completion_tokens"]) == ("fake", "stop", 3)


def test_a_terminal_sees_how_far_it_is(batch, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    batch({"prompt": "a"}, {"prompt": "b"})
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "2/2" in printed.err


def test_answers_come_several_at_once(batch):
    model = ChatModel(echo, sequence_ids=AT_ONCE)
    most = 0
    step = model.step

    def watched():
        nonlocal most
        most = max(most, len(model._streams))
        step()

    model.step = watched
    letters = "abcdefghijklmnopqrst"
    assert batch(*({"prompt": letter} for letter in letters), model=model) == {
        number: letter * 3 for number, letter in enumerate(letters, 1)
    }
    assert most == AT_ONCE


def test_options_reach_the_model(batch):
    model = ChatModel(echo)
    arguments = ["-s", "Be brief.", "-o", "seed=3", "--private", "--no-cache", "--schema", "name"]
    batch({"prompt": "a"}, arguments=arguments, model=model)
    (ask,) = model.asked
    assert [message.content for message in ask.prompt.messages] == ["Be brief.", "a"]
    assert (ask.sampling.seed, ask.private, ask.use_cache) == (3, True, False)
    assert '"required": ["name"]' in ask.grammar.source


def test_what_is_answered_is_not_asked_again(batch, capsys):
    batch({"prompt": "a"}, {"prompt": "b"})
    model = ChatModel(echo)
    assert batch({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}, model=model) == {1: "aaa", 2: "bbb", 3: "ccc"}
    assert len(model.asked) == 1
    assert capsys.readouterr().err.endswith("3 of 3 answered, 0 failed\n")


def test_a_line_that_a_kill_cut_off_is_answered_again(batch, here):
    batch({"prompt": "a"}, {"prompt": "b"})
    data = (here / "out.jsonl").read_bytes()
    (here / "out.jsonl").write_bytes(data[:-20])
    model = ChatModel(echo)
    assert batch({"prompt": "a"}, {"prompt": "b"}, model=model) == {1: "aaa", 2: "bbb"}
    assert len(model.asked) == 1


@pytest.mark.parametrize("change", [{"prompt": "z"}, {"prompt": "a", "options": {"seed": 1}}])
def test_an_answer_to_something_else_is_not_taken_for_one(batch, here, change):
    batch({"prompt": "a"})
    before = (here / "out.jsonl").read_bytes()
    with pytest.raises(UsageError, match="answers 1 already, but to another prompt"):
        batch(change)
    assert (here / "out.jsonl").read_bytes() == before


def test_a_failure_costs_its_own_line_only_and_can_be_tried_again(batch, capsys):
    def fails_at_b(request_id, tokens, generated):
        if bytes(token for token in tokens if token < 256).startswith(b"user: b"):
            raise EngineCrashedError("gone\x1b")
        return echo(request_id, tokens, generated)

    lines = [{"prompt": "b"}]
    with_failure = ChatModel(fails_at_b)
    assert batch(*lines, model=with_failure, code=ExitCode.FAILED) == {}
    assert capsys.readouterr().err == "pinyon: 1: gone\u241b\npinyon: 0 of 1 answered, 1 failed\n"
    assert batch(*lines, {"prompt": "a"}) == {1: "bbb", 2: "aaa"}


def test_a_prompt_that_does_not_fit_is_told(batch, capsys):
    model = ChatModel(echo, cells=64)
    assert batch({"prompt": "a" * 100}, {"prompt": "a"}, model=model, code=ExitCode.FAILED) == {2: "aaa"}
    assert "pinyon: 1: " in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_answered_and_the_next_run_goes_on(batch, here, capsys):
    def interrupts(request_id, tokens, generated):
        letter = echo(request_id, tokens, generated)
        if letter == ord("b"):
            if generated == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return letter  # for ever
        return letter

    model = ChatModel(interrupts)
    lines = [{"prompt": letter} for letter in "abc"]

    async def slowly():
        while model.engine.busy:
            model.step()
            await asyncio.sleep(0.001)

    model._step_while_busy = slowly
    kept = batch(*lines, model=model, code=ExitCode.INTERRUPTED)
    assert 2 not in kept
    assert capsys.readouterr().err.endswith(f"{len(kept)} of 3 answered, 0 failed\n")
    assert batch(*lines) == {1: "aaa", 2: "bbb", 3: "ccc"}


def test_a_real_model_answers_a_batch_and_what_was_cut_off_of_it(tmp_path, tiny):
    pinyon(tmp_path, "add", tiny, "--name", "tiny", check=True)
    lines = [{"id": f"line {number}", "prompt": "x" * number, "options": {"max_tokens": 9}} for number in range(1, 13)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl"]
    first = pinyon(tmp_path, *arguments, check=True)
    assert (first.stdout, first.stderr) == (b"", b"pinyon: 12 of 12 answered, 0 failed\n")
    whole = (tmp_path / "out.jsonl").read_bytes()
    assert sorted(map(json.dumps, written(tmp_path))) == sorted(json.dumps(line["id"]) for line in lines)
    (tmp_path / "out.jsonl").write_bytes(whole[: len(whole) // 2])
    kept = (tmp_path / "out.jsonl").read_bytes().rpartition(b"\n")[0]
    assert pinyon(tmp_path, *arguments, check=True).stderr == first.stderr
    assert (tmp_path / "out.jsonl").read_bytes().startswith(kept + b"\n")
    assert len(written(tmp_path)) == 12
