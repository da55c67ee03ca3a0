"""The chat in lines: what is typed, what is read out, and nothing that moves a cursor."""

import contextlib

import pytest
from fake_backend import ChatModel, FakeBackend
from fake_service import raises, says

from pinyon.app.cli.failures import ExitCode
from pinyon.app.conversing import Choices
from pinyon.app.history.history import History
from pinyon.app.settings import Folders, Settings
from pinyon.app.tui.plain import PlainChat
from pinyon.engine.errors import ContextOverflowError, ModelLoadError, NativeError
from pinyon.models.errors import ModelNotFoundError

TWO_LINES = says("First line.\nSecond line.")


@pytest.fixture
async def talk(tmp_path, monkeypatch, capsys):
    """Have lines typed; return what came on stdout and stderr."""
    async with contextlib.AsyncExitStack() as stack:

        async def talk(*lines, next_token=TWO_LINES, history=None, conversation=None, model=None, load_errors=()):
            typed = iter(lines)

            def read(prompt):
                print(prompt, end="")
                try:
                    return next(typed)
                except StopIteration:
                    raise EOFError from None

            monkeypatch.setattr("builtins.input", read)
            model = model or ChatModel(next_token)
            stack.push_async_callback(model.close)
            history = history or stack.enter_context(contextlib.closing(History.in_memory()))
            folders = Folders.of_user({"PINYON_HOME": str(tmp_path)})
            chat = PlainChat(
                history,
                FakeBackend(model, *load_errors),
                folders,
                Settings(),
                model=None,
                context=None,
                choices=Choices(),
            )
            talk.code = await chat.run(conversation)
            talk.chat = chat
            return capsys.readouterr()

        yield talk


async def test_a_turn_is_lines_in_and_lines_out(talk):
    out, err = await talk("Hello", "")
    assert out.splitlines()[1:] == ["You: Answer: First line.", "Second line.", "You: You: "]
    assert err == ""
    assert "\x1b" not in out


async def test_control_codes_of_an_answer_are_not_obeyed(talk, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out, _ = await talk("Hello", next_token=says("a\x1b[2Jb\x07"))
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "a␛[2Jb␇" in out


async def test_commands_need_no_screen(talk):
    out, err = await talk("/params seed=7", "Hello", "/context", "/command", "/gauges", "/nothing")
    assert "seed=7" in out
    assert "of 4,096 tokens used" in out
    assert "pinyon run -m fake --seed=" in out
    assert "leave out --plain" in err
    assert "no command 'nothing'" in err


async def test_a_number_opens_a_conversation(talk):
    with contextlib.closing(History.in_memory()) as history:
        lines = ("the jay", "/new", "the crow", "/search jay", "1", "/conversations", "9", "and its nest?")
        out, _ = await talk(*lines, history=history)
        said = {
            each.title: [message.text for message in history.tree(each.id).path()] for each in history.conversations()
        }
    assert "1: the jay: the jay" in out
    assert out.count("You: the jay") == 1
    assert said["the crow"] == ["the crow", "First line.\nSecond line."]
    assert said["the jay"][::2] == ["the jay", "and its nest?"]


async def test_an_open_conversation_is_read_out(talk):
    with contextlib.closing(History.in_memory()) as history:
        await talk("Hello", history=history)
        out, _ = await talk(history=history, conversation=history.latest().id)
    assert "You: Hello\nAnswer: First line.\nSecond line.\n" in out


async def test_an_answer_in_another_branch_is_read_out_like_any_other(talk):
    out, _ = await talk("Hello", "/regenerate")
    assert out.splitlines()[3:-1] == ["You: You: Hello", "Answer: First line.", "Second line."]


async def test_the_help_lists_what_can_be_done_in_lines(talk):
    out, _ = await talk("/help")
    assert "/params [NAME=VALUE ...]  Show or set how tokens are drawn\n" in out
    assert "/gauges" not in out
    assert "ctrl" not in out


async def test_a_file_goes_along(talk, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("the notes")
    fence = f"{file}\n```text\nthe notes\n```"
    with contextlib.closing(History.in_memory()) as history:
        _, err = await talk(f"/attach {file}", "what is this?", history=history)
        message = history.tree(history.latest().id).path()[0]
    assert f"notes.txt ({len(fence)} tokens) goes along" in err
    assert "the notes" in message.text
    assert message.text.endswith("what is this?")
    assert message.typed == "what is this?"
    assert [(each.size_bytes, each.tokens) for each in message.attached] == [(9, len(fence))]


async def test_what_nobody_can_count_yet_goes_along_with_its_size(talk, tmp_path):
    (tmp_path / "notes.txt").write_text("the notes")
    _, err = await talk(f"/attach {tmp_path}/notes.txt", load_errors=[ModelLoadError("damaged")])
    assert err.endswith("notes.txt (9 B) goes along with the next message\n")


async def test_a_folder_goes_along_as_one(talk, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    with contextlib.closing(History.in_memory()) as history:
        await talk(f"/attach {tmp_path}", "", history=history)
        (message, _) = history.tree(history.latest().id).path()
    assert [each.name for each in message.attached] == [f"{tmp_path}, 2 files"]


async def test_what_of_a_folder_is_no_text_is_told(talk, tmp_path):
    (tmp_path / "notes.txt").write_text("the notes")
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    _, err = await talk(f"/attach {tmp_path}")
    assert f"left out of {tmp_path}: {tmp_path}/a.png (a PNG image)\n" in err


async def test_what_is_attached_is_read_out_by_its_name(talk, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("the notes")
    with contextlib.closing(History.in_memory()) as history:
        await talk(f"/attach {file}", "what is this?", history=history)
        out, _ = await talk(history=history, conversation=history.latest().id)
    assert f"You: [{file}] what is this?\n" in out
    assert "the notes" not in out


async def test_a_failure_is_told(talk):
    _, err = await talk("Hello", next_token=raises(2, NativeError("decode failed")))
    assert err.startswith("Error: ")
    assert "decode failed" in err


class RefusingModel(ChatModel):
    async def generate(self, ask):
        raise ContextOverflowError(300, 256)
        yield


@pytest.mark.parametrize(
    ("lines", "how", "code"),
    [
        (["Hello"], {}, ExitCode.OK),
        (["/nothing"], {}, ExitCode.USAGE),
        (["/attach /none"], {}, ExitCode.USAGE),
        (["Hello", "/params seed=1"], {"next_token": raises(2, NativeError("decode failed"))}, ExitCode.FAILED),
        (["x" * 5000, "Hello"], {}, ExitCode.DOES_NOT_FIT),
        (["Hello"], {"model": RefusingModel(TWO_LINES)}, ExitCode.DOES_NOT_FIT),
        (["Hello"], {"load_errors": [ModelNotFoundError("none")]}, ExitCode.MODEL),
        (["Hello"], {"load_errors": [ModelLoadError("damaged")]}, ExitCode.MODEL),
    ],
)
async def test_in_a_pipe_the_first_failure_is_the_exit_code(talk, lines, how, code, monkeypatch):
    await talk(*lines, **how)
    assert talk.code is code
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    await talk(*lines, **how)
    assert talk.code is ExitCode.OK


@pytest.mark.parametrize("command", ["/system", "/rename", "/export", "/search"])
async def test_in_a_pipe_no_command_takes_the_next_line_for_its_answer(talk, command, monkeypatch):
    with contextlib.closing(History.in_memory()) as history:
        _, err = await talk("One", command, "Two", history=history)
        said = [message.text for message in history.tree(history.latest().id).path()]
    assert said[::2] == ["One", "Two"]
    assert "on the line of the command" in err
    assert talk.code is ExitCode.USAGE
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    _, err = await talk(command, "")
    assert "on the line of the command" not in err


async def test_a_line_that_is_not_utf_8_is_refused_and_the_next_one_is_heard(talk):
    with contextlib.closing(History.in_memory()) as history:
        _, err = await talk("caf\udce9", "Two", history=history)
        said = [message.text for message in history.tree(history.latest().id).path()]
    assert said[::2] == ["Two"]
    assert "Error: the line is not UTF-8: byte 0xe9" in err
    assert talk.code is ExitCode.USAGE


async def test_quit_leaves(talk):
    out, _ = await talk("/quit", "Hello")
    assert "Answer" not in out


async def test_a_path_that_is_typed_out_behind_an_at_goes_along(talk, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("the notes")
    with contextlib.closing(History.in_memory()) as history:
        _, err = await talk(f"what is in @{file} here", history=history)
        message = history.tree(history.latest().id).path()[0]
    assert "goes along with the next message" in err
    assert (message.typed, message.text.count("the notes")) == ("what is in here", 1)


async def test_an_answer_that_ran_into_its_limit_says_so(talk):
    with contextlib.closing(History.in_memory()) as history:
        _, err = await talk("/params max_tokens=5", "Hello", history=history)
        assert err == "cut off at 5 tokens; /continue goes on\n"
        out, _ = await talk(history=history, conversation=history.latest().id)
    assert "Answer: First (cut off at 5 tokens; /continue goes on)" in out


async def test_a_parameter_out_of_range_is_told_at_once(talk):
    _, err = await talk("/params temperature=9999", "Hello")
    assert err.startswith("Error: temperature is 9999.0; allowed: 0, or ")
    assert talk.chat.dialogue.choices.sampling.temperature is None


async def test_what_was_attached_can_be_left_out_again(talk, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("the notes")
    _, err = await talk(f"/attach {file}", "/detach", "/detach", "Hello")
    assert err.splitlines()[1:] == [f"{file} is left out", "Error: nothing is attached"]
    assert talk.chat.dialogue.model.asked[0].prompt.messages[0].content == "Hello"


async def test_a_search_says_what_is_wrong_with_a_filter_and_where_nothing_is_found(talk):
    _, err = await talk("/search role:bogus", "/search crow")
    assert err == "Error: role is 'bogus': it can be system, user, assistant\nnothing found\n"
