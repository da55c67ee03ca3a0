"""The files of a batch: what a line may say, and what an output is taken for."""

import os

import msgspec
import pytest

from pinyon.app.ask import Ask, Chat, SamplingChoice
from pinyon.app.cli.batch_files import Answered, Output, Question, appended, held, read_output, read_questions
from pinyon.app.errors import UsageError
from pinyon.models.chat_template import Message


@pytest.fixture
def read(tmp_path):
    def of_lines(*lines, system=None, options=None):
        (tmp_path / "in.jsonl").write_bytes(b"\n".join(line.encode() for line in lines))
        return read_questions(tmp_path / "in.jsonl", system, options or {})

    return of_lines


def said(question):
    return [(message.role, message.content) for message in question.ask.prompt.messages]


def test_a_line_is_a_prompt_or_messages(read):
    first, second = read('{"prompt": "one"}', "", '{"id": "b", "messages": [{"role": "user", "content": "two"}]}')
    assert (first.id, said(first)) == (1, [("user", "one")])
    assert (second.id, said(second)) == ("b", [("user", "two")])


def test_instructions_come_first_the_line_s_own_before_the_common_ones(read):
    lines = [
        '{"prompt": "x"}',
        '{"prompt": "x", "system": "own"}',
        '{"messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "x"}]}',
    ]
    assert [said(question) for question in read(*lines, system="common")] == [
        [("system", "common"), ("user", "x")],
        [("system", "own"), ("user", "x")],
        [("system", "own"), ("user", "x")],
    ]


def test_options_of_a_line_are_over_the_common_ones(read):
    (question,) = read(
        '{"prompt": "x", "options": {"seed": 2, "max_tokens": 5}}', options={"seed": "1", "temperature": "0"}
    )
    assert (question.ask.sampling, question.ask.max_tokens) == (SamplingChoice(seed=2, temperature=0), 5)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"in\.jsonl, line 2: "),
        ("{}", "line 2: it needs a prompt or messages, and not both"),
        ('{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}', "not both"),
        ('{"messages": []}', "it needs a prompt"),
        ('{"prompt": "x", "messages": []}', "not both"),
        ('{"prompt": "x", "promt": "y"}', "promt"),
        ('{"prompt": 1}', "Expected `str"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "tool"),
        ('{"messages": [{"role": "user", "content": "x", "name": "y"}]}', "name"),
        ('{"messages": [{"role": "system", "content": "x"}], "system": "y"}', "instructions twice"),
        ('{"prompt": "x", "options": {"tempo": 1}}', "no option 'tempo'"),
        ('{"prompt": "x", "options": {"seed": "many"}}', "seed is 'many'"),
        ('{"prompt": "x", "id": 1}', "the id 1 was there before"),
        ("[" * 5000, "line 2"),
    ],
    ids=lambda value: value[:20],
)
def test_a_line_that_cannot_be_asked_is_named(read, line, words):
    with pytest.raises(UsageError, match=words):
        read('{"prompt": "x"}', line)


def test_an_input_may_begin_with_a_byte_order_mark(read):
    (question,) = read('\ufeff{"prompt": "x"}')
    assert said(question) == [("user", "x")]


def test_an_input_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_questions(tmp_path / "none", None, {})


QUESTION = Question("a", Ask(Chat((Message("user", "x"),))))


def test_an_answer_is_to_all_that_decides_about_it_and_to_nothing_else():
    told = QUESTION.answered("m")

    def asks(**changes):
        return Question("a", msgspec.structs.replace(QUESTION.ask, **changes)).answered("m")

    assert asks(id="other", private=True, use_cache=False) == told
    assert QUESTION.answered("n") != told
    assert asks(prompt=Chat((Message("user", "y"),))) != told
    assert asks(sampling=SamplingChoice(seed=1)) != told
    assert asks(max_tokens=1) != told


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.jsonl"


def line(id_, asked="ab"):
    return msgspec.json.encode({"id": id_, "asked": asked, "text": "x"}) + b"\n"


@pytest.mark.parametrize("rest", [b"", b"{", b'{"id"', b'{"id":2,"asked":"ab","te', line(2)[:-1]], ids=repr)
def test_an_output_goes_on_after_its_last_whole_line(target, rest):
    target.write_bytes(line(1) + line("b") + rest)
    output = read_output(target)
    assert output.answered == {1: Answered(1, "ab"), "b": Answered("b", "ab")}
    with appended(target, output) as file:
        file.write(line(2))
    assert target.read_bytes() == line(1) + line("b") + line(2)


def test_an_output_that_is_not_there_is_made(target):
    output = read_output(target)
    assert output == Output({}, 0)
    assert not target.exists()
    with appended(target, output) as file:
        file.write(line(1))
    assert target.read_bytes() == line(1)


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt": "x"}\n',
        b"notes\n",
        b"notes",
        line(1) + b"\n",
        line(1) + b"notes",
        b"\xff\n",
        b'{"prompt"',
        b'{"id": 1, "prompt": "x"}',
        b'{"id":1,"prompt":"x"}',
    ],
    ids=repr,
)
def test_a_file_that_is_no_output_is_left_alone(target, data):
    target.write_bytes(data)
    with pytest.raises(UsageError, match="name another file"):
        read_output(target)
    assert target.read_bytes() == data


def test_an_output_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(UsageError, match="is not a regular file"):
        read_output(tmp_path)
    with (
        pytest.raises(UsageError, match="cannot be written: No such file"),
        appended(tmp_path / "no" / "x", Output({}, 0)),
    ):
        pass


def test_an_output_has_one_writer_by_whatever_path_it_is_named(tmp_path, target):
    batches = tmp_path / "batches"
    (tmp_path / "link").symlink_to(target)
    with held(target, batches):
        with held(tmp_path / "other", batches):
            pass
        for name in (target, tmp_path / "link"):
            with pytest.raises(UsageError, match=f"process {os.getpid()} writes"), held(name, batches):
                pass
    with held(target, batches):
        pass
