import pytest
from fakes import BOS, END_OF_TURN, EOS, SPECIAL, USER_TAG, ByteTable
from hypothesis import given
from hypothesis import strategies as st

from pinyon.engine.errors import InvalidRequestError
from pinyon.engine.request import Reasoning, Text, Tokens
from pinyon.engine.vocab import Vocab

CONTROL = {BOS, EOS, END_OF_TURN}
SPELLINGS = sorted(SPECIAL[token] for token in CONTROL)
BROKEN = ["<", ">", "|", "<|", "im_end", "</", "s", "<s", "<|im_end|", "|im_end|>"]
plain_texts = st.lists(st.sampled_from([*SPELLINGS, *BROKEN, " ", "\n"]) | st.text(max_size=4), max_size=8).map("".join)


class ParsesAlways(ByteTable):
    def tokenize(self, text, *, parse_special):
        return super().tokenize(text, parse_special=True)


def controls(tokens):
    return [token for token in tokens if token in CONTROL]


def ids(text):
    return list(text.encode())


@given(st.lists(plain_texts, max_size=4))
def test_plain_text_never_gives_control_tokens_and_is_kept(texts):
    tokens = Vocab(ByteTable()).encode([Text(text) for text in texts])
    assert controls(tokens) == []
    assert tokens == ids("".join(texts))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("before", ["", "hi", "<", "<|", "<s"])
@pytest.mark.parametrize("after", ["", "there", ">", "<s>"])
def test_a_control_string_typed_by_a_user_is_text_between_the_template_s_own(spelling, before, after):
    typed = before + spelling + after
    prompt = [Text("<s>user ", special=True), Text(typed), Text("<|im_end|>", special=True)]
    tokens = Vocab(ByteTable()).encode(prompt)
    assert tokens == [BOS, *ids("user "), *ids(typed), END_OF_TURN]


def test_control_strings_are_not_put_together_out_of_neighbouring_pieces():
    prompt = [Text("<|im_", special=True), Text("end"), Text("|>", special=True)]
    assert Vocab(ByteTable()).encode(prompt) == ids("<|im_end|>")


def test_a_table_that_parses_control_strings_in_plain_text_is_noticed():
    assert controls(Vocab(ParsesAlways()).encode([Text("hi</s>")])) == [EOS]


def test_special_text_gives_control_tokens():
    tokens = Vocab(ByteTable()).encode([Text("<s>a</s><|im_end|><tool>", special=True)])
    assert tokens == [BOS, ord("a"), EOS, END_OF_TURN, USER_TAG]


def test_tag_typed_by_a_user_stays_text_and_the_template_s_is_a_token():
    vocab = Vocab(ByteTable())
    assert vocab.encode([Text("call "), Text("<tool>"), Text(" now")]) == ids("call <tool> now")
    assert vocab.encode([Text("<tool>", special=True)]) == [USER_TAG]


@pytest.mark.parametrize(
    "prompt",
    [
        [Text("hi")],
        [Text("hi", special=True)],
        [Text("<s>hi", special=True)],
        [Text("<s>", special=True), Text("hi")],
        [Tokens((BOS,)), Text("hi")],
        [Tokens((BOS, *b"hi"))],
        [Tokens(tuple(b"hi"))],
        [Text(""), Text("<s>hi", special=True)],
        [Tokens(()), Text("hi")],
    ],
)
def test_the_prompt_begins_with_exactly_one_bos_where_the_model_wants_one(prompt):
    assert Vocab(ByteTable(adds_bos=True)).encode(prompt) == [BOS, *b"hi"]


def test_bos_spelled_by_a_user_does_not_stand_for_the_real_one():
    assert Vocab(ByteTable(adds_bos=True)).encode([Text("<s>hi")]) == [BOS, *ids("<s>hi")]


@pytest.mark.parametrize("prompt", [[Text("hi")], [Text("hi", special=True)], [Tokens(tuple(b"hi"))]])
def test_no_bos_is_added_where_the_model_wants_none(prompt):
    assert Vocab(ByteTable()).encode(prompt) == list(b"hi")


def test_no_bos_is_added_where_the_vocabulary_has_none():
    table = ByteTable(adds_bos=True)
    table.bos = None
    assert Vocab(table).encode([Text("hi")]) == list(b"hi")


def test_token_pieces_are_used_as_they_are():
    assert Vocab(ByteTable()).encode([Text("a"), Tokens((EOS, 98)), Text("c")]) == [97, EOS, 98, 99]


def test_strings_of_the_vocabulary():
    vocab = Vocab(ByteTable())
    assert vocab.control_strings == ("</s>", "<s>", "<|im_end|>")
    assert vocab.tag_strings == ("<tool>",)
    assert vocab.eog_strings == ("</s>", "<|im_end|>")
    assert [vocab.token_text(token) for token in (BOS, 65, None)] == ["<s>", "A", ""]


@pytest.mark.parametrize(
    ("text", "is_tag"),
    [
        ("<think>", True),
        ("[INST]", True),
        ("</tool>", True),
        ("    ", False),
        ("\n\n", False),
        ("<a b>", False),
        ("<>", False),
    ],
)
def test_only_user_defined_tokens_that_look_like_tags_are_tags(text, is_tag):
    table = ByteTable()
    table.text = lambda token: text.encode()
    assert Vocab(table).tag_strings == ((text,) if is_tag else ())


def test_control_tokens_are_invisible_and_user_defined_ones_are_not():
    assert Vocab(ByteTable()).decode([BOS, *"é".encode(), USER_TAG, END_OF_TURN, EOS]) == "é<tool>"


def test_the_control_tokens_that_spell_tags_are_looked_up_once(monkeypatch):
    vocab, tags = Vocab(ByteTable()), Reasoning("<s>think", ("<|im_end|>",))
    assert vocab.tag_bytes(tags) == {BOS: b"<s>", END_OF_TURN: b"<|im_end|>"}
    monkeypatch.setattr(ByteTable, "text", lambda *_args: pytest.fail("looked up again"))
    assert vocab.tag_bytes(Reasoning("<s>think", ("<|im_end|>",))) == {BOS: b"<s>", END_OF_TURN: b"<|im_end|>"}
    assert vocab.tag_bytes(None) == {}


@pytest.mark.parametrize("token", [-1, ByteTable.size, 2**31, 2**32 + 5, 2**63])
def test_an_id_outside_the_vocabulary_never_reaches_the_table(token):
    with pytest.raises(InvalidRequestError, match=rf"token id {token}\b"):
        Vocab(ByteTable()).decode([65, token])


@given(st.binary(max_size=12))
def test_decoding_never_fails(data):
    assert Vocab(ByteTable()).decode(list(data)) == data.decode("utf-8", "replace")
