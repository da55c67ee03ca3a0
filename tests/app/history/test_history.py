import threading

import pytest
from histories import ANSWERED, assert_sound, change, rows, told

from pinyon.app.history.errors import NoConversationError, NoMessageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Attached, Role, State

DAY_S = 86400


class Clock:
    def __init__(self, now=1_000_000_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "disk"])
def history(request, tmp_path, clock):
    with History(None if request.param == "memory" else tmp_path / "history.db", clock=clock) as history:
        yield history


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "history.db"


def test_what_was_written_is_read_at_once(history, clock):
    conversation, (asked, given) = told(history)
    assert (conversation.title, conversation.model, conversation.messages) == ("Why?", "tiny", 2)
    assert (asked.role, asked.text, asked.state, asked.parent) == (Role.USER, "Why?", State.COMPLETE, None)
    assert (given.role, given.text, given.state, given.parent) == (
        Role.ASSISTANT,
        "Because.",
        State.COMPLETE,
        asked.id,
    )
    assert given.answered == ANSWERED
    assert given.created_at == clock.now
    assert history.why_not_saved == ""


def test_what_streams_is_read_as_far_as_it_has_come(history):
    name = history.start(title="", model="").id
    number = history.add(name, None, Role.ASSISTANT, "a", reasoning="x", state=State.STREAMING).id
    for text, reasoning in (("b", ""), ("", "y"), ("c", "z")):
        history.stream(number, text, reasoning)
    message = history.tree(name).message(number)
    assert (message.text, message.reasoning, message.state) == ("abc", "xyz", State.STREAMING)


def test_a_cut_answer_goes_on(history):
    _, (_, given) = told(history)
    history.flush()
    history.stream(given.id, " And so on.")
    assert history.tree(given.conversation).message(given.id).state is State.STREAMING
    history.finish(given.id, State.CANCELLED, None)
    message = history.tree(given.conversation).message(given.id)
    assert (message.text, message.state, message.answered) == ("Because. And so on.", State.CANCELLED, None)


def test_a_failed_answer_keeps_what_came_and_why(history):
    name = history.start(title="", model="").id
    number = history.add(name, None, Role.ASSISTANT, "", state=State.STREAMING).id
    history.stream(number, "half")
    history.finish(number, State.FAILED, None, "the engine died")
    message = history.tree(name).message(number)
    assert (message.text, message.state, message.error) == ("half", State.FAILED, "the engine died")


def test_the_latest_comes_first(history, clock):
    names = []
    for _ in range(4):
        clock.now += 1
        names.append(history.start(title="", model="").id)
    assert [each.id for each in history.conversations()] == names[::-1]
    history.flush()
    clock.now += 1
    history.add(names[1], None, Role.USER, "again")
    assert [each.id for each in history.conversations()] == [names[1], names[3], names[2], names[0]]
    assert history.latest().id == names[1]
    before = history.conversations(limit=2)[-1].updated_at
    assert [each.id for each in history.conversations(limit=1, before=before)] == [names[2]]


def test_an_empty_history_has_no_latest(history):
    assert history.latest() is None
    assert history.conversations() == history.search("word") == history.answers("tiny") == []


def test_what_is_deleted_is_hidden_and_comes_back(history):
    kept, deleted = told(history, "kept word")[0], told(history, "deleted word")[0]
    for flushed in (False, True):
        history.delete(deleted.id)
        if flushed:
            history.flush()
        assert [each.id for each in history.conversations()] == [kept.id]
        assert [each.conversation.id for each in history.search("word")] == [kept.id]
        for ask in (history.conversation, history.tree, history.delete):
            with pytest.raises(NoConversationError, match=deleted.id):
                ask(deleted.id)
        history.undelete(deleted.id)
        assert {each.conversation.id for each in history.search("word")} == {kept.id, deleted.id}
        if flushed:
            history.flush()
        assert history.conversation(deleted.id) == deleted


def test_what_is_purged_is_gone(history):
    kept, purged = told(history, "kept word")[0], told(history, "purged word")[0]
    history.flush()
    history.purge(purged.id)
    for _ in range(2):
        assert [each.id for each in history.conversations()] == [kept.id]
        assert [each.conversation.id for each in history.search("word")] == [kept.id]
        for ask in (history.conversation, history.tree, history.purge, history.undelete):
            with pytest.raises(NoConversationError, match=purged.id):
                ask(purged.id)
        history.flush()


def test_what_streams_may_be_deleted_or_purged_meanwhile(history):
    deleted, purged = (history.start(title="", model="").id for _ in range(2))
    numbers = [history.add(name, None, Role.ASSISTANT, "", state=State.STREAMING).id for name in (deleted, purged)]
    history.delete(deleted)
    history.purge(purged)
    history.stream(numbers[0], "text")
    history.finish(numbers[0], State.COMPLETE, None)
    with pytest.raises((NoMessageError, NoConversationError)):
        history.stream(numbers[1], "text")
    history.undelete(deleted)
    assert history.tree(deleted).message(numbers[0]).text == "text"


def test_a_title_is_changed(history):
    conversation, _ = told(history)
    history.rename(conversation.id, "Another")
    assert history.conversation(conversation.id).title == "Another"
    history.flush()
    assert history.latest().title == "Another"


def test_what_is_not_there_is_an_error(history):
    name = history.start(title="", model="").id
    for ask in (history.conversation, history.tree, history.delete, history.undelete, history.purge):
        with pytest.raises(NoConversationError, match="nope"):
            ask("nope")
    for ask in (
        lambda: history.add(name, 7, Role.USER, ""),
        lambda: history.stream(7, "a"),
        lambda: history.finish(7, State.COMPLETE, None),
        lambda: history.use_leaf(name, 7),
    ):
        with pytest.raises(NoMessageError, match="7"):
            ask()


def test_names_that_are_no_unicode_do_not_keep_the_history_from_being_saved(history):
    conversation = history.start(title="a\udcff", model="m\udcff")
    attached = (Attached("b\udcff.txt", 3, 1, 5),)
    history.add(conversation.id, None, Role.USER, "b\udcff.txt\n\nWhat?", attached=attached)
    history.flush()
    assert history.why_not_saved == ""
    (message,) = history.tree(conversation.id).path()
    assert message.attached == (Attached("b?.txt", 3, 1, 5),)
    assert history.search("", model="\udcff") == []


def test_a_search_is_narrowed(history, clock):
    first, _ = told(history, "a word", "the word")
    clock.now += DAY_S
    second, _ = told(history, "a word", "another")
    for _ in range(2):
        found = history.search("word")
        assert [(each.conversation.id, each.role) for each in found] == [
            (second.id, Role.USER),
            (first.id, Role.ASSISTANT),
            (first.id, Role.USER),
        ]
        assert [each.role for each in history.search("word", role=Role.ASSISTANT)] == [Role.ASSISTANT]
        assert [each.role for each in history.search("word", model="tiny")] == [Role.ASSISTANT]
        assert history.search("word", model="tiny2") == history.search("word", model="-") == []
        assert [each.conversation.id for each in history.search("word", since=clock.now)] == [second.id]
        assert len(history.search("word", limit=2)) == 2
        assert found[0].conversation.messages == 2
        history.flush()


def test_filters_without_words_list_what_they_select(history, clock):
    first, _ = told(history, "a word", "the word")
    clock.now += DAY_S
    second, (asked, given) = told(history, "漢字", "another")
    streaming = history.add(second.id, given.id, Role.ASSISTANT, "not yet", state=State.STREAMING)
    for _ in range(2):
        found = history.search("", since=clock.now)
        assert [(each.message, each.snippet) for each in found] == [(given.id, "another"), (asked.id, "漢字")]
        assert [each.snippet for each in history.search(" ", role=Role.USER)] == ["漢字", "a word"]
        assert [each.snippet for each in history.search("", model="ti")] == ["another", "the word"]
        assert [each.snippet for each in history.search("", model="ti", since=clock.now)] == ["another"]
        assert [each.snippet for each in history.search("", since=1.0, limit=1)] == ["another"]
        assert history.search("", model="iny") == history.search("", model="-") == []
        assert history.search("", role=Role.ASSISTANT, since=clock.now + 1) == []
        assert history.search("") == history.search("?!", role=Role.USER) == []
        history.flush()
    history.finish(streaming.id, State.COMPLETE, None)
    history.delete(first.id)
    assert [each.snippet for each in history.search("", role=Role.ASSISTANT)] == ["not yet", "another"]


def test_what_is_changed_is_found_as_it_is(history):
    _, (_, given) = told(history, answer="before")
    history.flush()
    history.stream(given.id, " after")
    assert history.search("before") == []
    history.finish(given.id, State.COMPLETE, ANSWERED)
    for _ in range(2):
        assert [each.snippet for each in history.search("after")] == ["before after"]
        history.flush()


def test_answers_tell_how_fast_a_model_was(history):
    for _ in range(3):
        told(history)
        history.flush()
    told(history)
    assert history.answers("tiny") == [ANSWERED] * 4
    assert history.answers("tiny", limit=2) == [ANSWERED] * 2
    assert history.answers("other") == []


def test_all_of_it_is_there_after_a_restart(path):
    attached = (Attached("a.py", 10, 3),)
    with History(path) as history:
        conversation, (asked, _) = told(history)
        history.add(conversation.id, asked.id, Role.ASSISTANT, "b\0\x1b\u202e", reasoning="r", attached=attached)
        before = history.tree(conversation.id), history.conversations()
    with History(path) as history:
        assert history.conversations() == before[1]
        assert history.tree(conversation.id).messages == before[0].messages
        assert history.tree(conversation.id).path() == before[0].path()
    assert_sound(path)


def test_halves_of_surrogate_pairs_become_question_marks(path):
    with History(path) as history:
        name = history.start(title="\udcff", model="\udcff").id
        number = history.add(name, None, Role.ASSISTANT, "a\ud800", state=State.STREAMING).id
        history.stream(number, "\udcff", "\udcff")
        history.finish(number, State.FAILED, None, "\udcff")
        history.flush()
        assert history.why_not_saved == ""
        assert history.conversation(name).title == "?"
        assert history.tree(name).message(number).text == "a??"


def test_nothing_is_made_before_something_is_kept(path):
    with History(path) as history:
        assert history.conversations() == []
    assert not path.parent.exists()


def test_it_is_for_its_owner_alone(path):
    with History(path) as history:
        told(history)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["history.db"]


def test_what_streams_is_on_disk_soon(path):
    """Without flushing: the writer comes by itself."""
    with History(path) as history:
        name = history.start(title="", model="").id
        number = history.add(name, None, Role.ASSISTANT, "", state=State.STREAMING).id
        for text in ("one", "two"):
            history.stream(number, text)
            while not path.exists() or (history.tree(name).message(number).text,) not in rows(
                path, "SELECT text FROM messages"
            ):
                threading.Event().wait(0.01)


def test_what_still_streams_at_the_end_is_interrupted(path):
    with History(path) as history:
        name = history.start(title="", model="").id
        number = history.add(name, None, Role.ASSISTANT, "half", state=State.STREAMING).id
    with History(path) as history:
        assert history.tree(name).message(number).state is State.INTERRUPTED
        assert [each.message for each in history.search("half")] == [number]


def test_another_process_sees_what_streams_and_the_first_one_ends_it(path):
    with History(path) as first:
        name = first.start(title="", model="").id
        number = first.add(name, None, Role.ASSISTANT, "half", state=State.STREAMING).id
        first.flush()
        second = History(path)
        assert second.tree(name).message(number).state is State.STREAMING
        second.rename(name, "theirs")
        second.flush()
        first.stream(number, " and half")
        first.finish(number, State.COMPLETE, ANSWERED)
        first.flush()
        assert second.tree(name).message(number).text == "half and half"
        assert first.conversation(name).title == second.conversation(name).title == "theirs"
        second.close()
    assert_sound(path)


def test_two_that_write_one_conversation_keep_both_their_messages(path):
    with History(path) as first:
        name = first.start(title="", model="").id
        root = first.add(name, None, Role.USER, "root").id
        first.flush()
        second = History(path)
        for each in (first, second):
            each.tree(name)
        ours, theirs = (each.add(name, root, Role.USER, "more").id for each in (first, second))
        first.flush()
        second.flush()
        below = first.add(name, theirs, Role.USER, "below").id
        assert set(first.tree(name).messages) == {root, ours, theirs, below}
        second.purge(name)
        second.flush()
        first.flush()
        for each in (first, second):
            with pytest.raises(NoConversationError):
                each.tree(name)
        second.close()
    assert rows(path, "SELECT * FROM messages") == rows(path, "SELECT * FROM conversations") == []


def test_what_a_dead_process_left_is_interrupted(path):
    with History(path) as history:
        name = history.start(title="", model="").id
        number = history.add(name, None, Role.ASSISTANT, "half a word", state=State.STREAMING).id
        history.flush()
        change(path, "UPDATE messages SET writer = '999999999 1'")
        with History(path) as other:
            assert other.tree(name).message(number).state is State.INTERRUPTED
            told(other)
            other.flush()
            assert rows(path, "SELECT state FROM messages WHERE id = ?", number) == [("interrupted",)]
            assert [each.message for each in other.search("half")] == [number]


def test_what_was_deleted_long_ago_is_purged(path, clock):
    with History(path, clock=clock) as history:
        old, new = told(history)[0], told(history)[0]
        history.delete(old.id)
        clock.now += 29 * DAY_S
        history.delete(new.id)
    for days, left in ((0, 2), (2, 1)):
        clock.now += days * DAY_S
        with History(path, clock=clock) as history:
            told(history)
        assert len(rows(path, "SELECT * FROM conversations WHERE deleted_at IS NOT NULL")) == left
    assert_sound(path)


def test_purged_words_have_left_the_file(path):
    with History(path) as history:
        told(history, answer="zebrafish")
        purged, _ = told(history, answer="quaggamussel")
        history.flush()
        for _ in range(20):  # several parts of the index
            told(history)
            history.flush()
        assert b"quaggamussel" in path.read_bytes()
        history.purge(purged.id)
    assert b"quaggamussel" not in path.read_bytes()
    assert b"zebrafish" in path.read_bytes()


def test_a_clock_that_was_set_back_changes_no_order(history, clock):
    name = history.start(title="", model="").id
    numbers = []
    for _ in range(5):
        clock.now -= DAY_S
        numbers.append(history.add(name, None, Role.USER, "word").id)
    assert numbers == sorted(numbers) == history.tree(name).siblings(numbers[0])
    assert history.tree(name).path()[-1].id == numbers[-1]


def test_many_threads_lose_nothing(path):
    with History(path) as history:
        name = history.start(title="", model="").id
        number = history.add(name, None, Role.ASSISTANT, "", state=State.STREAMING).id

        def write():
            for _ in range(200):
                history.stream(number, "a")
                history.add(name, number, Role.USER, "b")
                history.tree(name)

        threads = [threading.Thread(target=write) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        history.finish(number, State.COMPLETE, None)
    assert rows(path, "SELECT text, count(*) FROM messages GROUP BY text ORDER BY 2") == [("a" * 800, 1), ("b", 800)]
    assert_sound(path)


def test_conversations_at_rest_leave_memory(path):
    with History(path) as history:
        names = [told(history)[0].id for _ in range(20)]
        history.flush()
        told(history)
        assert len(history._held) <= 9
        assert all(history.conversation(name).messages == 2 for name in names)
