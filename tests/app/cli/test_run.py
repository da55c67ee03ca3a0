"""`pinyon run`, option by option, over a fake model: the exact bytes of stdout, what the model is asked, what is kept."""

import asyncio
import contextlib
import json
import os
import pty
import socket
import sqlite3
import sys
from types import SimpleNamespace

import pytest
from fake_backend import ChatModel, called, faked
from fake_service import THINK, raises, says

from pinyon.app.ask import Chat, RawText, SamplingChoice
from pinyon.app.cli import chat, ending, exchange, prompt_sources
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.run import command
from pinyon.app.errors import AnswerError, GenerationFailedError, UsageError
from pinyon.app.history.errors import HistoryFileError
from pinyon.app.history.history import History
from pinyon.app.history.records import Attached, Role, State
from pinyon.app.settings import Folders
from pinyon.engine.errors import EngineCrashedError
from pinyon.engine.estimate import Estimate
from pinyon.engine.events import Chunk, FinishReason
from pinyon.models.chat_template import Message
from pinyon.models.store import Store


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    monkeypatch.setenv("PINYON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield Folders.of_user()


@pytest.fixture
def asked(monkeypatch):
    """Call `pinyon run -m fake` with arguments, over a model that says a text; return its exit code and the model."""

    def run(*arguments, answer="Hello", model=None, code=ExitCode.OK):
        model = model or ChatModel(says(answer))
        faked(monkeypatch, model)
        assert called(command, "-m", "fake", *arguments) == code
        return model

    return run


@pytest.fixture
def kept(folders):
    """What the history holds: for each conversation, the oldest first, its title and its messages' roles and texts."""

    def read():
        history = History(folders.history_file)
        try:
            return [
                (conversation.title, [(m.role, m.text) for m in history.tree(conversation.id).path()])
                for conversation in reversed(history.conversations())
            ]
        finally:
            history.close()

    return read


def last_answer(folders):
    history = History(folders.history_file)
    try:
        return history.tree(history.latest().id).path()[-1]
    finally:
        history.close()


ESTIMATE = Estimate(100, resident=60, ram=10, disk=20, compute_s=0.25, restore_s=0.5, is_measured=True)


class EstimatedModel(ChatModel):
    """Has the same estimate for every ask; `estimated` are the asks."""

    def __init__(self):
        super().__init__(says("x"))
        self.estimated = []

    async def estimate(self, ask):
        self.estimated.append(ask)
        return ESTIMATE


def messages(model):
    return [(message.role, message.content) for message in model.asked[-1].prompt.messages]


@pytest.mark.parametrize("arguments", [[], ["--no-stream"], ["--format", "text"]])
def test_the_answer_is_all_of_stdout(asked, capsys, arguments):
    asked("Say", "hello", *arguments)
    assert capsys.readouterr() == ("Hello\n", "")


@pytest.mark.parametrize("arguments", [["--json"], ["--format", "json"], ["--json", "--format", "json"]])
def test_json(asked, capsys, arguments):
    asked("Say hello", *arguments)
    printed = capsys.readouterr()
    shown = json.loads(printed.out)
    assert printed.out == json.dumps(shown, separators=(",", ":")) + "\n"
    assert (shown["text"], shown["model"], shown["finish_reason"], shown["completion_tokens"]) == (
        "Hello",
        "fake",
        "stop",
        5,
    )
    assert printed.err == ""


def test_json_lines(asked, capsys):
    asked("x", "--format", "jsonl", model=ChatModel(says("<think>hm</think>Hi"), reasoning=THINK))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "".join(line["text"] for line in lines if line["type"] == "reasoning") == "hm"
    assert "".join(line["text"] for line in lines if line["type"] == "text") == "Hi"
    assert [line["type"] for line in lines].index("end") == len(lines) - 1


def test_only_the_first_code_block(asked, capsys):
    asked("x", "-x", answer="Look:\n```sh\nls\n```\n")
    assert capsys.readouterr().out == "ls\n"
    with pytest.raises(AnswerError, match="no whole code block"):
        asked("x", "-x", answer="none")
    assert capsys.readouterr().out == ""


def test_stats_are_a_line_on_stderr_also_of_an_answer_without_code(asked, capsys):
    with pytest.raises(AnswerError):
        asked("x", "-x", "--stats", answer="none")
    printed = capsys.readouterr()
    assert (printed.out, json.loads(printed.err)["completion_tokens"]) == ("", 4)


def test_reasoning_is_hidden_from_the_terminal_where_that_is_wanted(asked, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    thinking = ChatModel(says("<think>hm</think>Hi"), reasoning=THINK)
    asked("x", model=thinking)
    assert capsys.readouterr() == ("Hi\n", "\x1b[2mh\x1b[0m\x1b[2mm\x1b[0m\n\n")
    asked("x", "-R", model=ChatModel(says("<think>hm</think>Hi"), reasoning=THINK))
    assert capsys.readouterr() == ("Hi\n", "")


def test_the_pipe_and_files_come_before_the_prompt(asked, monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.txt").write_text("hm\n")
    reader, writer = os.pipe()
    os.write(writer, b"piped\n")
    os.close(writer)
    with open(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        model = asked("-f", "a.py", "-f", "b.txt", "Explain", "this")
    assert messages(model) == [
        ("user", "a.py\n```python\nx = 1\n```\n\nb.txt\n```text\nhm\n```\n\npiped\n\nExplain this")
    ]


def test_what_is_attached_is_counted_told_on_a_terminal_and_kept(asked, folders, capsys, monkeypatch, tmp_path, kept):
    (tmp_path / "a.txt").write_text("hm\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    asked("-f", "a.txt")
    tokens = len("a.txt\n```text\nhm\n```")
    assert capsys.readouterr() == ("Hello\n", f"a.txt: {tokens} tokens\n")
    history = History(folders.history_file)
    (user, _) = history.tree(history.latest().id).path()
    history.close()
    assert user.attached == (Attached("a.txt", 3, tokens, tokens),)  # a token a character
    assert kept()[0][0] == "a.txt"


@pytest.mark.parametrize(
    ("prompt", "typed"),
    [
        ("$input", "What is it?"),
        ("$input\nBe brief.", "What is it?\nBe brief."),
        ("Read this: $input", None),
    ],
)
def test_what_a_template_leaves_in_front_is_kept_apart_from_the_words(asked, folders, tmp_path, prompt, typed):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "t.toml").write_text(f"prompt = {json.dumps(prompt)}")
    asked("-t", "./t.toml", "-f", "a.txt", "-f", "b.txt", "What is it?")
    with contextlib.closing(History(folders.history_file)) as history:
        (user, _) = history.tree(history.latest().id).path()
    fences = tuple(f"{name}\n```text\n{name}\n```" for name in ("a.txt", "b.txt"))
    assert user.attached_texts == (fences if typed is not None else ("", ""))
    assert user.typed == (user.text if typed is None else typed)


def test_instructions_come_first(asked):
    assert messages(asked("-s", "Be brief.", "x")) == [("system", "Be brief."), ("user", "x")]
    assert messages(asked("--system", "Be brief.", "x")) == [("system", "Be brief."), ("user", "x")]


@pytest.mark.parametrize(
    ("arguments", "sampling", "max_tokens"),
    [
        (["-o", "temperature=0.5", "-o", "max_tokens=3"], SamplingChoice(temperature=0.5), 3),
        (["-o", "presence_penalty=1", "--top-k", "5"], SamplingChoice(presence_penalty=1, top_k=5), None),
        (["--max-tokens", "4", "--seed", "9"], SamplingChoice(seed=9), 4),
    ],
)
def test_options_by_name(asked, arguments, sampling, max_tokens):
    ask = asked("x", *arguments).asked[-1]
    assert (ask.sampling, ask.max_tokens) == (sampling, max_tokens)


def test_a_template_fills_prompt_instructions_options_and_model(monkeypatch, folders, capsys):
    folders.templates.mkdir(parents=True)
    (folders.templates / "ask.toml").write_text(
        'prompt = "In $language: $input"\nsystem = "As $who."\nmodel = "other"\nextract = true\n'
        '[options]\ntemperature = 0.1\ntop_k = 3\n[defaults]\nlanguage = "French"\n'
    )
    backend = faked(monkeypatch, model := ChatModel(says("```\nvite\n```")))
    assert called(command, "-t", "ask", "-p", "who=a poet", "-o", "top_k=9", "quick") == 0
    assert backend.loads == ["other"]
    assert messages(model) == [("system", "As a poet."), ("user", "In French: quick")]
    assert model.asked[-1].sampling == SamplingChoice(temperature=0.1, top_k=9)
    assert capsys.readouterr().out == "vite\n"


def test_a_schema_is_a_grammar_and_a_cut_off_answer_is_no_json(asked, capsys):
    ask = asked("x", "--schema", "name, age int").asked[-1]
    assert '"required": ["name", "age"]' in ask.grammar.source
    assert capsys.readouterr().out == f"{ask.grammar.source}\n", (
        "the fake constraint lets nothing pass but its own text"
    )
    with pytest.raises(AnswerError, match="cut off after 3 tokens"):
        asked("x", "--schema", "name", "--max-tokens", "3", answer='{"name": "A"}')


def test_a_time_limit_ends_the_answer_and_keeps_what_is_there(asked, capsys, folders):
    model = ChatModel(says("abc" * 1000))
    model.unpaused.clear()

    async def steps():
        for _ in range(20):
            model.step()
        await asyncio.sleep(60)

    generate = model.generate

    async def stepping(ask):
        task = asyncio.create_task(steps())
        async for event in generate(ask):
            yield event
        task.cancel()

    model.generate = stepping
    with pytest.raises(AnswerError, match=r"stopped after 1 s, with \d+ tokens of the answer"):
        asked("x", "--timeout", "1", model=model)
    printed = capsys.readouterr().out
    assert printed.endswith("\n")
    assert ("abc" * 1000).startswith(printed.rstrip("\n"))
    assert (last_answer(folders).state, last_answer(folders).text) == (State.CANCELLED, printed.rstrip("\n"))


def test_a_time_limit_that_passes_before_the_engine_knows_the_request_ends_it_too(asked, monkeypatch):
    monkeypatch.setattr(ending, "AGAIN_S", 0.01)
    model = ChatModel(says("abc" * 100_000), cells=400_000)
    generate = model.generate

    async def rendered_slowly(ask):
        await asyncio.sleep(0.1)
        async for event in generate(ask):
            yield event

    model.generate = rendered_slowly
    with pytest.raises(AnswerError, match=r"stopped after 0\.01 s"):
        asked("x", "--timeout", "0.01", model=model)
    with pytest.raises(AnswerError, match=r"stopped after 0\.01 s, .*; the answer has no whole code block"):
        asked("-x", "x", "--timeout", "0.01", model=model)


def test_nothing_goes_on_where_nothing_is_kept(asked, monkeypatch):
    asked("One")
    monkeypatch.setenv("PINYON_HISTORY", "false")
    with pytest.raises(UsageError, match="-c goes on with what was kept"):
        asked("-c", "Two")


def test_a_time_limit_counts_the_load(monkeypatch, capsys):
    backend = faked(monkeypatch, ChatModel(says("x")))
    backend.ready.clear()
    with pytest.raises(AnswerError, match=r"not loaded within the 0\.05 s"):
        called(command, "-m", "fake", "x", "--timeout", "0.05")
    assert capsys.readouterr().out == ""


class SilentModel(ChatModel):
    """Says a word, then nothing any more, and takes no cancel; counts for ever where `counts` is set."""

    counts = False

    async def generate(self, ask):
        yield Chunk(0, "Well")
        await asyncio.Event().wait()

    async def cancel(self, ask_id):
        await asyncio.Event().wait()

    async def count(self, text):
        return await asyncio.Event().wait() if self.counts else 1

    async def estimate(self, ask):
        await asyncio.Event().wait()


def test_a_time_limit_ends_also_what_gives_no_sign_any_more(asked, capsys, monkeypatch, folders):
    monkeypatch.setattr(exchange, "STOPPING_S", 0.01)
    with pytest.raises(AnswerError, match=r"the answer did not end within the 0\.05 s of --timeout"):
        asked("x", "--timeout", "0.05", model=SilentModel(says("")))
    assert capsys.readouterr() == ("Well\n", "")
    assert (last_answer(folders).state, last_answer(folders).text) == (State.CANCELLED, "Well")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "what is attached was not counted"), (["--dry-run"], "what it would cost was not known")],
)
def test_a_time_limit_ends_the_counting_too(asked, capsys, tmp_path, arguments, words):
    (tmp_path / "a.txt").write_text("hm\n")
    model = SilentModel(says(""))
    model.counts = True
    with pytest.raises(AnswerError, match=rf"{words} within the 0\.05 s of --timeout"):
        asked("-f", "a.txt", "x", "--timeout", "0.05", *arguments, model=model)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("source", ["url", "pipe"])
def test_a_time_limit_ends_the_reading_too(asked, monkeypatch, source):
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as silent, open(reader) as stdin, open(writer, "w"):
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setenv("PINYON_URLS", "true")
        monkeypatch.setenv("NO_PROXY", "*")
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(AnswerError, match=r"the prompt was not read within the 0\.05 s of --timeout"):
            asked("-f", address if source == "url" else "-", "x", "--timeout", "0.05")


def test_a_time_limit_that_is_not_reached_changes_nothing(asked, capsys):
    asked("x", "--timeout", "60")
    assert capsys.readouterr() == ("Hello\n", "")


def test_a_dry_run_tells_what_the_prompt_would_cost_and_keeps_nothing(asked, capsys, kept, tmp_path):
    (tmp_path / "a.txt").write_text("hm\n")
    model = asked("-f", "a.txt", "x", "--dry-run", model=EstimatedModel())
    assert capsys.readouterr().out == (
        "model    fake, context 4,096 tokens\n"
        "prompt   100 tokens\n"
        "         20 of them a.txt\n"
        "cached   90 tokens: 60 in the context, 10 in RAM, 20 on disk\n"
        "begins   after 0.8 s\n"
    )
    asked("x", "--dry-run", "--json", model=EstimatedModel())
    assert json.loads(capsys.readouterr().out) == {
        "model": "fake",
        "context_tokens": 4096,
        "prompt_tokens": 100,
        "cached_tokens": 90,
        "resident": 60,
        "ram": 10,
        "disk": 20,
        "compute_s": 0.25,
        "restore_s": 0.5,
        "is_measured": True,
        "attached": [],
    }
    assert model.asked == []
    assert kept() == []


def test_a_run_is_kept_with_how_it_was_answered(asked, folders, kept):
    model = asked("-s", "Be brief.", "Say\nhello", "--seed", "4")
    assert kept() == [("Say", [(Role.SYSTEM, "Be brief."), (Role.USER, "Say\nhello"), (Role.ASSISTANT, "Hello")])]
    message = last_answer(folders)
    assert (message.state, message.conversation) == (State.COMPLETE, model.asked[-1].conversation)
    answered = message.answered
    assert (answered.model, answered.digest, answered.finish_reason) == ("fake", "ab" * 32, FinishReason.STOP)
    assert (answered.settings, answered.usage.completion_tokens) == (SamplingChoice(seed=4), 5)


def test_text_without_a_template_is_kept_too(asked, kept):
    model = asked("--no-template", "Once")
    assert model.asked[-1].prompt == RawText("Once")
    assert kept() == [("Once", [(Role.USER, "Once"), (Role.ASSISTANT, "Hello")])]


@pytest.mark.parametrize("how", ["option", "setting"])
def test_what_is_private_is_not_kept(asked, kept, how, monkeypatch):
    if how == "setting":
        monkeypatch.setenv("PINYON_HISTORY", "false")
    ask = asked("x", *["--private"] * (how == "option")).asked[-1]
    assert ask.private == (how == "option")
    assert kept() == []


def test_the_last_conversation_goes_on_with_whole_messages(asked, kept):
    first = asked("-s", "Be brief.", "One")
    second = asked("-c", "Two", answer="Again")
    assert messages(second) == [("system", "Be brief."), ("user", "One"), ("assistant", "Hello"), ("user", "Two")]
    assert second.asked[-1].conversation == first.asked[-1].conversation
    ((title, path),) = kept()
    assert (title, [text for _, text in path]) == ("One", ["Be brief.", "One", "Hello", "Two", "Again"])


def test_a_conversation_goes_on_with_its_own_model(monkeypatch, folders, tiny):
    Store(folders.models).add(tiny, "first")
    faked(monkeypatch, ChatModel(says("x"), name="first"))
    called(command, "-m", "given", "One")
    backend = faked(monkeypatch, ChatModel(says("x")))
    called(command, "-c", "Two")
    assert backend.loads == ["first"]


def test_a_question_without_an_answer_is_not_asked_again(asked, kept, folders):
    asked("One")
    crash = ChatModel(raises(0, EngineCrashedError("gone")))
    with pytest.raises(GenerationFailedError, match="gone"):
        asked("-c", "Two", model=crash)
    assert (last_answer(folders).state, last_answer(folders).error) == (State.FAILED, "gone")
    model = asked("-c", "Three")
    assert [text for _, text in messages(model)] == ["One", "Hello", "Three"]
    assert [text for _, text in kept()[0][1]] == ["One", "Hello", "Three", "Hello"]


def test_a_dry_run_counts_what_came_before(asked):
    asked("One")
    (ask,) = asked("-c", "Two", "--dry-run", model=EstimatedModel()).estimated
    assert ask.prompt == Chat((Message("user", "One"), Message("assistant", "Hello"), Message("user", "Two")))


@pytest.fixture
def lock(folders):
    """Hold the history's file as another program does, from when it is called."""
    with contextlib.ExitStack() as stack:

        def hold():
            holder = sqlite3.connect(folders.history_file, isolation_level=None)
            stack.enter_context(contextlib.closing(holder))
            holder.execute("BEGIN EXCLUSIVE")

        yield hold


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_dry_run_needs_no_history(asked, lock, capsys, folders, when):
    asked("One")
    capsys.readouterr()
    model = EstimatedModel()
    if when == "before":
        lock()
    else:
        estimate = model.estimate

        async def held(ask):
            lock()
            return await estimate(ask)

        model.estimate = held
    asked("Two", "--dry-run", model=model)
    printed = capsys.readouterr()
    assert printed.out.endswith("begins   after 0.8 s\n")
    assert printed.err == f"pinyon: another program holds {folders.history_file}: close it, or try again\n"


def test_a_conversation_that_cannot_be_read_is_not_said_to_be_missing(asked, lock, folders):
    asked("One")
    lock()
    with pytest.raises(HistoryFileError, match="could be read: another program holds"):
        asked("-c", "Two", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c"], "no conversation to go on with"),
        (["-c", "--private"], "-c goes on.*--private"),
        (["-c", "-s", "y"], "--system"),
        (["-c", "--no-template"], "--no-template"),
        (["-p", "a=b"], "-p fills in a template"),
        (["-x", "--format", "jsonl"], "-x needs the whole"),
        (["--no-stream", "--format", "jsonl"], "--no-stream waits"),
        (["--json", "--format", "jsonl"], "--json is"),
        (["-i"], "-i needs a terminal"),
        (["-i", "--private"], "-i goes on.*--private"),
        (["-i", "--dry-run"], "-i goes on.*--dry-run"),
        (["-o", "seed=1", "--seed", "2"], "seed is given twice"),
        (["-f", "-", "-f", "-"], "-f - is given twice"),
        (["-t", "none"], "no template"),
        (["-f", "none"], "none cannot be attached: No such file"),
        (["--schema", "a b c"], "'a b c'"),
    ],
)
def test_what_makes_no_sense_together_is_refused(asked, arguments, words, capsys):
    with pytest.raises(UsageError, match=words):
        asked("x", *arguments)
    assert capsys.readouterr().out == ""


@pytest.fixture
def terminal(monkeypatch):
    """The standard input on a terminal; the chats that were opened."""
    leader, follower = pty.openpty()
    opened = []
    monkeypatch.setattr(chat, "open_chat", lambda wanted: opened.append(wanted) or ExitCode.OK)
    with open(leader, "rb"), open(follower) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield opened


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (None, None, False, False)),
        (["smollm2"], ("smollm2", None, False, False)),
        (["-m", "x", "--context", "99", "--private"], ("x", 99, True, False)),
        (["-c", "-i"], (None, None, False, True)),
    ],
)
def test_without_a_prompt_a_terminal_gets_the_chat(terminal, monkeypatch, arguments, expected):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert called(command, *arguments) == 0
    (wanted,) = terminal
    assert (wanted.model, wanted.context, wanted.private, wanted.continues) == expected


def test_other_options_need_a_prompt(terminal, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="there is no prompt"):
        called(command, "--json")
    assert terminal == []


def test_the_chat_goes_on_after_the_answer(terminal, asked, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="-i needs a terminal"):
        asked("-i", "Say")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    asked("-i", "Say")
    assert capsys.readouterr().out == "Hello\n"
    assert [(wanted.model, wanted.continues) for wanted in terminal] == [("fake", True)]


@pytest.mark.parametrize("arguments", [["-o", "seed=x"], ["--schema", "a b c"], ["-p", "a=b"]])
def test_options_are_checked_before_a_pipe_is_read(asked, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: pytest.fail("it is asked for")))
    with pytest.raises(UsageError):
        asked("x", *arguments)


def test_a_silent_pipe_beside_a_prompt_is_left_out(asked, capsys, monkeypatch):
    monkeypatch.setattr(prompt_sources, "GRACE_S", 0.01)
    reader, writer = os.pipe()
    with open(reader) as stdin, open(writer, "w"):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert messages(asked("x")) == [("user", "x")]
    printed = capsys.readouterr()
    assert printed.out == "Hello\n"
    assert printed.err.startswith("pinyon: nothing came through the pipe within 0.01 s")


def test_what_was_given_up_so_that_the_model_fits_is_told_beside_the_answer(asked, capsys):
    model = ChatModel(says("Hello"))
    model.compromises = (
        "a context of 4,096 tokens instead of the usual 32,768",
        "keys and values in q8_0: this can cost quality",
    )
    asked("Hi", model=model)
    printed = capsys.readouterr()
    assert printed.out == "Hello\n"
    assert [line for line in printed.err.splitlines() if "fits" in line] == [
        f"pinyon: so that fake fits into memory: {compromise}" for compromise in model.compromises
    ]
