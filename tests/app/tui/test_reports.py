"""What the chat tells in words; commands are run by a real shell."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from pinyon.app.ask import SamplingChoice
from pinyon.app.conversing import Choices, EditCost
from pinyon.app.history.history import History
from pinyon.app.history.records import Answered, Role, State
from pinyon.app.tui.reports import (
    as_command,
    as_curl,
    cache_report,
    context_report,
    edit_cost,
    params_report,
    status,
)
from pinyon.engine.cache_report import CacheReport, Miss
from pinyon.engine.events import FinishReason, Progress, Timings, Usage

QUESTION = 'What\'s a "jay"?\n$HOME `id` \\ !'


def answered(cache=None):
    usage = Usage(prompt_tokens=100, completion_tokens=11, cached_tokens=64)
    cache = cache or CacheReport(ram=64, miss=Miss.NEW, position=64)
    return Answered("fake", "", SamplingChoice(), FinishReason.STOP, usage, Timings(0.0, 0.5, 1.0), cache, 7)


@pytest.fixture
def talk():
    """A history, and in it a conversation with instructions, two questions and an answer to each."""
    history = History.in_memory()
    conversation = history.start(title="jays", model="fake")
    parent = history.add(conversation.id, None, Role.SYSTEM, "Be brief.").id
    for text in ("Hello", QUESTION):
        parent = history.add(conversation.id, parent, Role.USER, text).id
        parent = history.add(conversation.id, parent, Role.ASSISTANT, "", state=State.STREAMING).id
        history.stream(parent, "Aye.")
        history.finish(parent, State.COMPLETE, answered())
    yield history, conversation
    history.close()


def path_of(talk):
    history, conversation = talk
    return history.tree(conversation.id).path()


def test_the_cache_is_told_with_its_tier_and_why_not_more(talk):
    assert cache_report(path_of(talk)).splitlines() == [
        "reused: 64/100 (RAM 64) tokens of the last prompt",
        "not more: new, from token 64",
    ]


def test_the_cache_is_told_with_the_texts_that_part_and_the_advice(talk):
    history, conversation = talk
    last = path_of(talk)[-1]
    cache = CacheReport(miss=Miss.DIVERGED, position=3, expected="a\x1b", got="b", advice="put it at the end")
    again = history.add(conversation.id, last.parent, Role.ASSISTANT, "Nay.", state=State.STREAMING)
    history.finish(again.id, State.COMPLETE, answered(cache=cache))
    assert cache_report(path_of(talk)).splitlines()[1:] == [
        "not more: diverged, from token 3",
        r"known there: 'a\x1b'",
        "came there: 'b'",
        "advice: put it at the end",
    ]


def test_nothing_is_told_about_a_cache_before_the_first_answer():
    assert cache_report([]) == "No answer here has figures yet."


def test_the_context():
    class Model:
        name, context_tokens, kv_type = "fake", 4096, "q8_0"

    assert context_report(111, Model()) == "111 of 4,096 tokens used, 3,985 left (fake, KV in q8_0)"


def test_what_was_chosen_is_told():
    choices = Choices(SamplingChoice(temperature=0.0, seed=7), max_tokens=9)
    assert params_report(choices).startswith("chosen: temperature=0.0\nseed=7\nmax_tokens=9\n")
    assert params_report(Choices()).startswith("chosen: nothing")


def test_what_an_edit_costs():
    told = edit_cost(EditCost(prompt_tokens=1200, cached_tokens=200, lost_tokens=800, compute_s=2.0))
    assert told == "makes 800 tokens of the cache useless, computes 1,000 tokens again (2.00 s)"


def run_in_shell(command, name):
    """Run a command line in which one program is replaced by one that prints its arguments."""
    script = f'{name}() {{ for word; do printf "%s\\0" "$word"; done; }}\n{command}\n'
    return subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode().split("\0")[:-1]


def test_the_curl_command_asks_the_same(talk):
    command = as_curl(path_of(talk), Choices(SamplingChoice(temperature=0.5), max_tokens=9), "fake", "http://x:1")
    url, _, header, _, data = run_in_shell(command, "curl")
    assert (url, header) == ("http://x:1/v1/chat/completions", "Content-Type: application/json")
    assert json.loads(data) == {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Aye."},
            {"role": "user", "content": QUESTION},
        ],
        "temperature": 0.5,
        "max_tokens": 9,
    }


def test_the_pinyon_command_asks_the_last_question_and_says_what_it_leaves_out(talk):
    command = as_command(path_of(talk), Choices(SamplingChoice(top_k=3)), "fake")
    assert command.startswith("# without the 1 earlier question;")
    words = run_in_shell(command, "pinyon")
    assert words == ["run", "-m", "fake", "--system=Be brief.", "--top-k=3", "--", QUESTION]


@pytest.mark.parametrize(
    ("loaded", "prefill", "waiting", "lines"),
    [
        (None, None, [], []),
        (0.5, None, ["one"], ["loading the model: 50%", "waiting (1): one"]),
        (None, Progress(512, 2000), [], ["prefill: 512 of 2,000 tokens"]),
        (None, Progress(0, 2000), [], []),
        (None, Progress(2000, 2000), [], []),
    ],
)
def test_the_lines_above_the_prompt(loaded, prefill, waiting, lines):
    dialogue = SimpleNamespace(wanted=None, loaded=loaded, prefill=prefill, waiting=waiting)
    assert status(dialogue) == lines
