import html.parser
import json

import msgspec
import pytest
from histories import ANSWERED

from pinyon.app.history import export
from pinyon.app.history.records import Attached, Conversation, Message, Role, State

CONVERSATION = Conversation("c", "A <b>title</b>\nof two lines", 0.0, 0.0, "tiny", 2)
ASKED = Message(
    1, "c", None, Role.USER, "Why <i>&amp;</i>?", "", State.COMPLETE, 0.0, attached=(Attached("a<b>.py", 1234, 56),)
)
GIVEN = Message(
    2, "c", 1, Role.ASSISTANT, "# Because\n\n```py\nx = 1\n", "let me\nsee", State.COMPLETE, 0.0, answered=ANSWERED
)
FAILED = Message(3, "c", 1, Role.ASSISTANT, "half", "", State.FAILED, 0.0, error="the engine\ndied")
PATH = [ASKED, GIVEN, FAILED]

MARKDOWN = """\
# A <b>title</b> of two lines

## User, 1970-01-01 00:00:00 +0000

- attached: a<b>.py (1,234 bytes, 56 tokens)

Why <i>&amp;</i>?

## Assistant (tiny), 1970-01-01 00:00:00 +0000

# Because

```py
x = 1

```

*ended by stop: 20 prompt tokens (8 of them cached), 5 tokens; waited 0.25 s, prefill 0.50 s, decode 1.00 s*

*temperature 0.5, top_k 3, seed 7*

*model SHA-256 abababababababababababababababababababababababababababababababab*

## Assistant, 1970-01-01 00:00:00 +0000

half

*failed: the engine died*
"""


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_markdown_tells_all_about_an_answer():
    assert export.markdown(CONVERSATION, PATH) == MARKDOWN


def test_markdown_quotes_thoughts_where_they_are_wanted():
    assert "> let me\n> see\n\n# Because" in export.markdown(CONVERSATION, PATH, reasoning=True)


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("a", "a"),
        ("```\na\n```", "```\na\n```"),
        ("```\na", "```\na\n```"),
        ("````md\n```\na\n```", "````md\n```\na\n```\n````"),
        ("~~~\n```\n", "~~~\n```\n\n~~~"),
        ("```\n``` not an end", "```\n``` not an end\n```"),
        ("``` a `code` span ```", "``` a `code` span ```"),
        ("    ```\n", "    ```\n"),
        ("```\n`````\nb", "```\n`````\nb"),
    ],
)
def test_a_fence_that_is_open_is_closed(text, closed):
    assert export._with_closed_fences(text) == closed


def test_jsonl_is_one_line_of_messages_as_openai_has_them():
    line = export.jsonl(CONVERSATION, PATH)
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "messages": [
            {"role": "user", "content": ASKED.text},
            {"role": "assistant", "content": GIVEN.text},
            {"role": "assistant", "content": "half"},
        ]
    }
    with_thoughts = json.loads(export.jsonl(CONVERSATION, PATH, reasoning=True))
    assert with_thoughts["messages"][1]["reasoning_content"] == GIVEN.reasoning


def test_jsonl_is_what_a_model_is_shown():
    path = [
        Message(1, "c", None, Role.SYSTEM, "first", "", State.COMPLETE, 0.0),
        ASKED,
        Message(3, "c", 2, Role.ASSISTANT, "", "", State.FAILED, 0.0, error="the engine died"),
        Message(4, "c", 3, Role.SYSTEM, "last", "", State.COMPLETE, 0.0),
        GIVEN,
    ]
    assert json.loads(export.jsonl(CONVERSATION, path))["messages"] == [
        {"role": "system", "content": "last"},
        {"role": "user", "content": ASKED.text},
        {"role": "assistant", "content": GIVEN.text},
    ]


class Document(html.parser.HTMLParser):
    """Which tags an HTML document has, and what text each kind of them holds."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.attributes, self._open = set(), {}, set(), []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open:
            self.texts[self._open[-1]][-1] += data


HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></article><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "&lt;script&gt;",
    "<!--",
    "]]>",
    "\x1b[2J\x00\x9b\u202e",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_html_shows_every_text_literally_and_runs_nothing(text):
    message = msgspec.structs.replace(
        GIVEN,
        text=text,
        reasoning=text,
        error=text,
        state=State.FAILED,
        attached=(Attached(text, 1, 1),),
        answered=msgspec.structs.replace(ANSWERED, model=text, digest=text),
    )
    conversation = msgspec.structs.replace(CONVERSATION, title=text)
    page = export.html(conversation, [message], reasoning=True)
    document = Document(page)
    shown = text.translate({0x1B: "\ufffd", 0: "\ufffd", 0x9B: "\ufffd"})
    assert document.texts["pre"] == [shown, shown]
    assert [shown] == document.texts["h1"] == document.texts["title"]
    for each in ("h2", "p", "footer"):
        assert shown in "".join(document.texts[each])
    plain = Document(export.html(CONVERSATION, [GIVEN], reasoning=True))
    assert document.tags == plain.tags | {"p", "br"}
    assert document.attributes == plain.attributes
    assert not {"script", "img", "link", "iframe", "style"} & document.tags - {"style"}
    assert not set(page) & {*map(chr, range(9)), "\x1b", "\x9b"}


def test_html_needs_nothing_from_elsewhere():
    page = export.html(CONVERSATION, PATH)
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    for figure in ("seed 7", "temperature 0.5", "prefill 0.50 s", "ab" * 32):
        assert figure in page
    assert "let me" not in page


WITH_FILES = msgspec.structs.replace(
    ASKED,
    text="a<b>.py\n```py\nx\n```\n\nb.md\n```\ny\n```\n\nWhy?",
    attached=(Attached("a<b>.py", 1, 2, 19), Attached("b.md", 3, 0, 14)),
)


def test_markdown_has_each_attachment_below_its_name():
    assert export.markdown(CONVERSATION, [WITH_FILES]).split("\n\n")[2:] == [
        "- attached: a<b>.py (1 byte, 2 tokens)",
        "a<b>.py\n```py\nx\n```",
        "- attached: b.md (3 bytes)",
        "b.md\n```\ny\n```",
        "Why?\n",
    ]


def test_html_folds_what_is_attached():
    document = Document(export.html(CONVERSATION, [WITH_FILES]))
    assert document.texts["summary"] == ["attached: a<b>.py (1 byte, 2 tokens)", "attached: b.md (3 bytes)"]
    assert document.texts["pre"] == ["a<b>.py\n```py\nx\n```", "b.md\n```\ny\n```", "Why?"]


def test_jsonl_has_what_the_model_was_told():
    assert json.loads(export.jsonl(CONVERSATION, [WITH_FILES]))["messages"][0]["content"] == WITH_FILES.text
