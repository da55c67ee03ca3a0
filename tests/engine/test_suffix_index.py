from hypothesis import given
from hypothesis import strategies as st

from pinyon.engine.suffix_index import KEY_TOKENS, LONGEST, PLACES, Place, SuffixIndex


def place_by_looking(text):
    """Return the same as SuffixIndex.find, from the whole text each time."""
    end = text[-KEY_TOKENS:]
    places = [at for at in range(KEY_TOKENS, len(text)) if text[at - KEY_TOKENS : at] == end]
    best = None
    for at in places[::-1][:PLACES]:
        length = 0
        while length < min(at, LONGEST) and text[at - 1 - length] == text[-1 - length]:
            length += 1
        if best is None or length > best.length:
            best = Place(at, length)
    return best


@given(st.lists(st.lists(st.integers(0, 2), max_size=30), max_size=12))
def test_the_longest_common_end_is_found_as_the_text_grows(pieces):
    text = []
    index = SuffixIndex(text)
    for piece in pieces:
        text += piece
        assert index.find() == (place_by_looking(text) if len(text) >= KEY_TOKENS else None)


def test_of_equal_ones_the_latest_counts():
    assert SuffixIndex([1, 2, 7, 1, 2, 8, 1, 2]).find() == Place(5, 2)
    assert SuffixIndex([9, 1, 2, 7, 1, 2, 8, 9, 1, 2]).find() == Place(3, 3)


def test_a_common_end_is_followed_so_far_only():
    text = [*range(100), 200, *range(100)]
    assert SuffixIndex(text).find() == Place(100, LONGEST)


def test_short_texts_and_new_ones_have_no_place():
    for text in ([], [1], [1, 1], [1, 2], [1, 2, 3, 4]):
        assert SuffixIndex(text).find() is None
    assert SuffixIndex([1, 1, 1]).find() == Place(2, 2)


def test_what_followed_goes_on_with_itself_at_the_end_of_the_text():
    index = SuffixIndex([1, 2, 3, 1, 2, 3, 1, 2])
    assert index.following(Place(2, 2), 3) == [3, 1, 2]
    assert index.following(Place(5, 5), 7) == [3, 1, 2, 3, 1, 2, 3]
