from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from pinyon.engine.reasoning import ReasoningSplitter
from pinyon.engine.request import Reasoning

THINK = Reasoning("<think>", ("</think>",))
OPENED = Reasoning("<think>", ("</think>",), opened=True)
CHANNELS = Reasoning(
    "<|channel|>analysis<|message|>",
    ("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
)


def split(tags, *pushes):
    """The answer and the thoughts, put together."""
    splitter = ReasoningSplitter(tags)
    parts = [part for push in pushes for part in splitter.push(push)] + list(splitter.flush())
    sides = {side: "".join(part.text for part in parts if part.is_reasoning is side) for side in (False, True)}
    return sides[False], sides[True]


@pytest.mark.parametrize(
    ("tags", "text", "answer", "thoughts"),
    [
        (OPENED, "abc</think>ans", "ans", "abc"),
        (OPENED, "a</think>b<think>c</think>d", "bd", "a\nc"),
        (OPENED, "never ends", "", "never ends"),
        (OPENED, "</think>ans", "ans", ""),
        (OPENED, "\n\n a \n</think>\n\nans", "ans", "a"),
        (THINK, "<think>\na\n</think>\n\nans", "ans", "a"),
        (THINK, "\n <think>a</think>ans", "ans", "a"),
        (THINK, "<think></think>ans", "ans", ""),
        (THINK, "<think>a", "", "a"),
        (THINK, "no thoughts < here", "no thoughts < here", ""),
        (THINK, "\n\nno thoughts", "\n\nno thoughts", ""),
        (THINK, "The tag `<think>` opens a block.", "The tag `<think>` opens a block.", ""),
        (THINK, "```\n<think>x</think>\n```", "```\n<think>x</think>\n```", ""),
        (THINK, "first `code` then <think>a</think> b", "first `code` then b", "a"),
        (THINK, "</think>ans", "ans", ""),
        (THINK, "x</think>y", "x</think>y", ""),
        (THINK, "<think>a<think>b</think>c", "c", "a<think>b"),
        (THINK, "<think>a</thin", "", "a</thin"),
        (THINK, "ans <thin", "ans <thin", ""),
        (CHANNELS, "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>ans", "ans", "a"),
        (CHANNELS, "<|channel|>final<|message|>ans", "ans", ""),
    ],
)
def test_thoughts_and_answer_are_told_apart_however_the_text_is_cut(tags, text, answer, thoughts):
    assert split(tags, text) == (answer, thoughts)
    assert split(tags, *text) == (answer, thoughts)
    for point in range(len(text)):
        assert split(tags, text[:point], text[point:]) == (answer, thoughts)


def test_a_tag_is_part_of_the_answer_once_that_has_begun():
    splitter = ReasoningSplitter(THINK)
    assert splitter.begin_answer() == ""
    assert [part.text for part in splitter.push("<think>a</think>")] == ["<think>a</think>"]


texts = st.lists(
    st.sampled_from(["<think>", "</think>", "<th", "ink>", "`", " ", "\n", "a", "b", "<", "é"]), max_size=12
).map("".join)


def assert_keeps_everything(make_splitter, tags, text, points):
    """However it is cut the result is the same, and all that is missing of the text are tags and white space."""
    edges = [0, *sorted(min(point, len(text)) for point in points), len(text)]
    splitter = make_splitter(tags)
    parts = [part for start, end in pairwise(edges) for part in splitter.push(text[start:end])]
    parts += splitter.flush()
    sides = tuple("".join(part.text for part in parts if part.is_reasoning is side) for side in (False, True))
    assert sides == split(tags, text)
    assert without_tags(tags, "".join(part.text for part in parts)) == without_tags(tags, text)


def without_tags(tags, text):
    """The text without white space and tags, those included that come together where others are taken out."""
    rest = "".join(text.split())
    while (less := reduce(lambda left, tag: left.replace(tag, ""), (tags.start, *tags.ends), rest)) != rest:
        rest = less
    return rest


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([THINK, OPENED]), texts, st.lists(st.integers(0, 60), max_size=4))
def test_nothing_but_tags_and_white_space_is_lost(tags, text, points):
    assert_keeps_everything(ReasoningSplitter, tags, text, points)


class HoldsNothing(ReasoningSplitter):
    def _undecided(self):
        return 0


class ForgetsWhatItHeld(ReasoningSplitter):
    def flush(self):
        return iter(())


@pytest.mark.parametrize("faulty", [HoldsNothing, ForgetsWhatItHeld])
def test_the_property_catches_a_planted_fault(faulty):
    def breaks(case):
        try:
            assert_keeps_everything(faulty, *case)
        except AssertionError:
            return True
        return False

    cases = st.tuples(st.sampled_from([THINK, OPENED]), texts, st.lists(st.integers(0, 60), max_size=4))
    search = settings(max_examples=3000, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    try:
        find(cases, breaks, settings=search)
    except NoSuchExample:
        pytest.fail(f"{faulty.__name__} went unnoticed")
