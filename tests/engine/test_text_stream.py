import codecs
from itertools import pairwise

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from pinyon.engine.text_stream import TextStream, Visible

UNICODE_SAMPLES = [
    "ok 🫠 fin",
    "你好, 世界",
    "👩‍👩‍👧 family",
    "e\u0301 a\u0308\u0323",
    "\u202eabc\u202c",
    "a\x00b",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
]


def shown(stream, chunks):
    """What each push shows, and last what the flush does."""
    return [stream.push(chunk).text for chunk in chunks] + [stream.flush().text]


def one_byte_each(text):
    return [bytes([byte]) for byte in text.encode()]


def cut(data, points):
    edges = [0, *sorted(min(point, len(data)) for point in points), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def before_first_completed_stop(text, stops):
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            return text[: end - len(max(completed, key=len))]
    return text


def assert_keeps_the_promise(make_stream, case):
    """The joined text is the reference's, and nothing that was shown on the way has to be taken back."""
    data, stops, points = case
    expected = before_first_completed_stop(data.decode("utf-8", "replace"), stops)
    so_far = ""
    for text in shown(make_stream(stops), cut(data, points)):
        so_far += text
        assert expected.startswith(so_far)
    assert so_far == expected


pieces = st.sampled_from(["a", "b", "ba", "🫠"]).map(str.encode) | st.sampled_from([b"\xff", b"\xf0\x9f"])
texts = st.lists(pieces, max_size=20).map(b"".join)


def stops_for(data):
    """Stop strings, most of them somewhere in the text."""
    text = data.decode("utf-8", "replace")
    starts = st.integers(0, max(0, len(text) - 1))
    inside = st.builds(lambda start, length: text[start : start + length], starts, st.integers(1, 5))
    return st.lists((inside | st.text("ab🫠", max_size=4)).filter(bool), max_size=4).map(tuple)


cases = texts.flatmap(
    lambda data: st.tuples(st.just(data), stops_for(data), st.lists(st.integers(0, len(data)), max_size=20))
)


@settings(max_examples=600, deadline=None)
@given(cases)
def test_any_cut_gives_the_text_before_the_first_completed_stop(case):
    assert_keeps_the_promise(TextStream, case)


class MatchesInsideOneToken(TextStream):
    def _possible_stop(self, text):
        return 0


class PrefersTheEarliestStart(TextStream):
    def _first_stop(self, text):
        return min((start for stop in self._stops if (start := text.find(stop)) >= 0), default=None)


class PrefersTheShortestStop(TextStream):
    def _first_stop(self, text):
        found = [(start + len(stop), -start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return -min(found)[1] if found else None


class HoldsOneCharacterTooFew(TextStream):
    def _possible_stop(self, text):
        return max(0, super()._possible_stop(text) - 1)


class ForgetsWhatItHeld(TextStream):
    def flush(self):
        return Visible(self._release(self._decoder.decode(b"", final=True)))


class DecodesEachTokenAlone(TextStream):
    def push(self, data):
        return Visible(self._release(data.decode("utf-8", "replace")))


@pytest.mark.parametrize(
    "faulty",
    [
        MatchesInsideOneToken,
        PrefersTheEarliestStart,
        PrefersTheShortestStop,
        HoldsOneCharacterTooFew,
        ForgetsWhatItHeld,
        DecodesEachTokenAlone,
    ],
)
def test_the_property_catches_a_planted_fault(faulty):
    def breaks(case):
        try:
            assert_keeps_the_promise(faulty, case)
        except AssertionError:
            return True
        return False

    search = settings(max_examples=5000, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    try:
        find(cases, breaks, settings=search)
    except NoSuchExample:
        pytest.fail(f"{faulty.__name__} went unnoticed")


@settings(max_examples=300, deadline=None)
@given(cases)
def test_only_text_that_may_become_a_stop_is_held_back(case):
    data, stops, points = case
    stream, decoder, seen, out = TextStream(stops), codecs.getincrementaldecoder("utf-8")("replace"), "", ""
    for chunk in cut(data, points):
        seen += decoder.decode(chunk)
        out += stream.push(chunk).text
        if stream.stopped:
            return
        begun = [stop[:length] for stop in stops for length in range(1, len(stop)) if seen.endswith(stop[:length])]
        assert seen == out + max(begun, key=len, default="")


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["beta gamma"], "alpha "),
        (["ta ga", "beta gamma"], "alpha be"),
        (["beta gamma", "ta ga"], "alpha be"),
        (["mma", "gamma"], "alpha beta "),
        (["alpha"], ""),
        (["a"], ""),
        (["delta"], "alpha beta gamma "),
        (["delta and more", "beta gammas"], "alpha beta gamma delta"),
        ([], "alpha beta gamma delta"),
    ],
)
@pytest.mark.parametrize("size", range(1, 23))
def test_stops_do_not_depend_on_the_size_of_tokens(stops, expected, size):
    data = b"alpha beta gamma delta"
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert "".join(shown(TextStream(stops), chunks)) == expected


def test_nothing_is_shown_after_a_stop():
    stream = TextStream(["b"])
    assert shown(stream, [b"ab", b"cd\xf0\x9f"]) == ["a", "", ""]
    assert stream.stopped


def test_stop_that_never_completes_is_shown_at_the_end():
    stream = TextStream(["END."])
    assert shown(stream, [b"the EN", b"D"]) == ["the ", "", "END"]
    assert not stream.stopped


def test_false_start_of_a_stop_is_shown_as_soon_as_it_is_one():
    assert shown(TextStream(["aab"]), [b"a", b"a", b"a", b"c"]) == ["", "", "a", "aac", ""]


@pytest.mark.parametrize("text", UNICODE_SAMPLES)
def test_characters_that_come_byte_by_byte_are_whole(text):
    pushed = shown(TextStream(), one_byte_each(text))
    assert "".join(pushed) == text
    assert all(len(part) <= 1 for part in pushed)


@pytest.mark.parametrize("character", ["é", "你", "🫠"])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_cut_off_character_gives_one_replacement_character_at_the_end(character, missing):
    kept = one_byte_each(character)[:-missing]
    assert shown(TextStream(), [b"ok ", *kept])[-1] == ("\ufffd" if kept else "")


def test_invalid_bytes_do_not_stall_the_stream():
    assert shown(TextStream(), [b"\xff", b"\x41"]) == ["\ufffd", "A", ""]


def test_stop_that_begins_and_ends_inside_tokens_of_several_characters():
    assert shown(TextStream(["🫠好"]), ["a🫠".encode()[:3], "a🫠".encode()[3:], "好b".encode()]) == ["a", "", "", ""]


def test_the_answer_begins_with_what_the_last_push_brought_whether_it_is_shown_or_not():
    stream = TextStream(("cd",))
    assert [stream.push(b"ab").text, stream.push(b"c\xc3").text] == ["ab", ""]
    assert stream.begin_answer() == b"c\xc3"
