"""The open conversation, without a screen: turns, branches, what waits, stops, deletions, and a server that dies."""

import asyncio
import contextlib

import pytest
from fake_backend import ChatModel, FakeBackend
from fake_service import says

from pinyon.app.ask import SamplingChoice
from pinyon.app.conversing import Choices
from pinyon.app.errors import ServerError, UsageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Role, State
from pinyon.app.named_options import NamedOptions
from pinyon.app.tui.dialogue import Dialogue
from pinyon.app.tui.draft import Draft, Piece
from pinyon.engine.errors import EngineCrashedError
from pinyon.engine.events import Chunk
from pinyon.models.errors import ModelNotFoundError, TemplateMissingError


class Listener:
    """Keeps what it is told, as words."""

    def __init__(self):
        self.told_words = []
        self.text = ""
        self.on_text = asyncio.Event()

    async def opened(self, at):
        self.told_words.append("opened")

    async def said(self, message):
        self.told_words.append(f"said {message.text}")

    def began(self, message):
        assert message.state is State.STREAMING
        self.told_words.append("began")

    def heard(self, event):
        if isinstance(event, Chunk):
            self.text += event.text
            self.on_text.set()

    def ended(self, message):
        self.told_words.append(f"ended {message.state.value}")

    def changed(self):
        pass

    def told(self, text, *, is_error=False):
        self.told_words.append(f"told {text}")

    def broke(self, error):
        raise error

    def needs_model(self, reason):
        self.told_words.append("needs a model")


class Talk:
    """A dialogue with its surroundings."""

    def __init__(self, answer="Aye.", *load_errors):
        self.history = History.in_memory()
        self.model = ChatModel(says(answer))
        self.backend = FakeBackend(self.model, *load_errors)
        self.listener = Listener()
        self.dialogue = Dialogue(self.history, self.backend, self.listener, Choices(), None, None)

    async def says(self, text):
        self.dialogue.say(Draft(text))
        await self.dialogue.finished()

    @property
    def texts(self):
        return [message.text for message in self.dialogue.path]


@pytest.fixture
async def make_talk():
    async with contextlib.AsyncExitStack() as stack:

        def make(*arguments):
            talk = Talk(*arguments)
            stack.callback(talk.history.close)
            stack.push_async_callback(talk.model.close)
            stack.push_async_callback(talk.dialogue.close)
            return talk

        yield make


async def test_a_title_is_what_was_typed_and_else_what_went_along(make_talk):
    talk = make_talk()
    talk.dialogue.say(Draft("What is this?", (Piece("file.py", "file.py\n```\ncode\n```", 4),)))
    talk.dialogue.say(Draft("", (Piece("other.py", "other.py\n```\ncode\n```", 4),)))
    assert talk.dialogue.conversation.title == "What is this?"
    assert talk.dialogue.waiting == ["What is this?", "other.py"]
    await talk.dialogue.finished()


async def test_how_far_a_prompt_is_is_known_until_its_answer_begins(make_talk):
    talk = make_talk()
    seen = []
    talk.listener.heard = lambda event: seen.append((type(event).__name__, talk.dialogue.prefill == event))
    await talk.says("one")
    assert {("Progress", True), ("Chunk", False), ("Finished", False)} == set(seen)
    assert talk.dialogue.prefill is None


async def test_a_turn(make_talk):
    talk = make_talk()
    await talk.says("What is a jay?")
    assert talk.texts == ["What is a jay?", "Aye."]
    assert talk.dialogue.conversation.title == "What is a jay?"
    assert talk.listener.told_words == ["said What is a jay?", "began", "ended complete"]
    assert talk.listener.text == "Aye."


async def test_the_next_turn_shows_the_model_what_came_before(make_talk):
    talk = make_talk()
    await talk.says("one")
    await talk.says("two")
    assert [message.content for message in talk.model.asked[1].prompt.messages] == ["one", "Aye.", "two"]


async def test_what_is_said_meanwhile_waits_its_turn(make_talk):
    talk = make_talk()
    talk.backend.ready.clear()
    for text in ("one", "two", "three"):
        talk.dialogue.say(Draft(text))
    await asyncio.sleep(0)
    assert talk.dialogue.waiting == ["one", "two", "three"]
    assert talk.dialogue.take_back() == Draft("three")
    talk.backend.ready.set()
    await talk.dialogue.finished()
    assert talk.texts == ["one", "Aye.", "two", "Aye."]
    assert talk.dialogue.take_back() is None


async def test_a_stop_keeps_the_text_and_the_next_answer_is_clean(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.model.unpaused.clear()
    talk.dialogue.say(Draft("one"))
    while len(talk.listener.text) < 3:
        if talk.model.engine.busy:
            talk.model.step()
        await asyncio.sleep(0)
    await talk.dialogue.stop()
    talk.dialogue.say(Draft("two"))
    talk.model.unpaused.set()
    await talk.dialogue.finished()
    first, second = talk.dialogue.path[1], talk.dialogue.path[3]
    assert first.state is State.CANCELLED
    assert "A long answer that goes on.".startswith(first.text)
    assert 3 <= len(first.text) < len("A long answer that goes on.")
    assert first.answered is not None
    assert (second.text, second.state) == ("A long answer that goes on.", State.COMPLETE)


async def test_a_stop_that_comes_before_the_engine_knows_the_request_stops_it(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.model.tokenised.clear()
    talk.dialogue.say(Draft("one"))
    while not talk.model.asked:
        await asyncio.sleep(0)
    await talk.dialogue.stop()
    talk.model.tokenised.set()
    await talk.dialogue.finished()
    assert talk.dialogue.path[-1].state is State.CANCELLED


async def test_closing_while_an_answer_is_written_keeps_its_text(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    await talk.dialogue.close()
    await talk.dialogue.open(talk.history.latest().id)
    assert talk.dialogue.path[-1].state is State.CANCELLED
    assert not talk.model.engine.busy


async def test_closing_while_the_model_loads(make_talk):
    talk = make_talk()
    talk.backend.ready.clear()
    talk.dialogue.say(Draft("one"))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await talk.dialogue.close()
    await talk.dialogue.open(talk.history.latest().id)
    assert talk.texts == ["one"]


async def test_an_edit_forks_and_the_old_branch_stays(make_talk):
    talk = make_talk()
    await talk.says("one")
    await talk.says("two")
    talk.dialogue.edit(talk.dialogue.path[0], Draft("uno"))
    await talk.dialogue.finished()
    assert talk.texts == ["uno", "Aye."]
    await talk.dialogue.turn(talk.dialogue.path[0], -1)
    assert talk.texts == ["one", "Aye.", "two", "Aye."]
    await talk.dialogue.turn(talk.dialogue.path[0], -1)
    assert talk.texts == ["one", "Aye.", "two", "Aye."]


async def test_answering_again_makes_a_sibling(make_talk):
    talk = make_talk()
    await talk.says("one")
    first = talk.dialogue.path[-1]
    talk.dialogue.answer_again(first)
    await talk.dialogue.finished()
    siblings = talk.history.tree(first.conversation).siblings(first.id)
    assert siblings == [first.id, talk.dialogue.path[-1].id]
    assert len(talk.model.asked[1].prompt.messages) == 1


async def test_a_question_without_an_answer_is_answered(make_talk):
    talk = make_talk()
    await talk.says("one")
    await talk.dialogue.delete(talk.dialogue.path[-1])
    assert talk.texts == ["one"]
    talk.dialogue.answer_again(talk.dialogue.path[-1])
    await talk.dialogue.finished()
    assert talk.texts == ["one", "Aye."]


async def test_a_cut_answer_goes_on(make_talk):
    talk = make_talk()
    await talk.says("one")
    talk.dialogue.go_on(talk.dialogue.path[-1])
    await talk.dialogue.finished()
    assert talk.texts == ["one", "Aye.Aye."]


async def test_deleting_a_message_and_taking_it_back(make_talk):
    talk = make_talk()
    await talk.says("one")
    await talk.says("two")
    await talk.dialogue.delete(talk.dialogue.path[2])
    assert talk.texts == ["one", "Aye."]
    assert await talk.dialogue.undo()
    assert talk.texts == ["one", "Aye.", "two", "Aye."]
    assert not await talk.dialogue.undo()


async def test_deleting_a_conversation_forgets_its_kv_and_can_be_taken_back(make_talk):
    talk = make_talk()
    await talk.says("one")
    conversation = talk.dialogue.conversation.id
    await talk.dialogue.delete(talk.dialogue.path[0])
    assert talk.dialogue.conversation is None
    assert talk.history.conversations() == []
    assert talk.backend.forgotten == [conversation]
    await talk.dialogue.undo()
    assert talk.texts == ["one", "Aye."]


async def test_an_answer_goes_on_while_another_conversation_is_open(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    first = talk.dialogue.conversation.id
    await talk.dialogue.open(None)
    await talk.dialogue.finished()
    assert talk.texts == []
    assert "ended complete" not in talk.listener.told_words
    await talk.dialogue.open(first)
    assert talk.texts == ["one", "A long answer that goes on."]


async def test_coming_back_to_an_answer_that_is_still_written(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    first = talk.dialogue.conversation.id
    await talk.dialogue.open(None)
    assert not talk.dialogue.shows_answer
    await talk.dialogue.open(first)
    assert talk.dialogue.shows_answer
    await talk.dialogue.finished()
    assert talk.listener.told_words[-1] == "ended complete"


async def test_instructions_stand_before_the_first_message_and_can_change(make_talk):
    talk = make_talk()
    await talk.dialogue.instruct("Be brief.")
    await talk.says("one")
    await talk.dialogue.instruct("Be long.")
    await talk.says("two")
    roles = [[message.role for message in ask.prompt.messages] for ask in talk.model.asked]
    contents = [ask.prompt.messages[0].content for ask in talk.model.asked]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"]]
    assert contents == ["Be brief.", "Be long."]
    assert talk.dialogue.path[0].role is Role.SYSTEM
    assert talk.dialogue.instructions == "Be long."


async def test_no_model_is_asked_for_and_what_was_said_waits(make_talk):
    talk = make_talk("Aye.", ModelNotFoundError("no model is here yet"))
    await talk.says("one")
    assert talk.listener.told_words == ["needs a model"]
    assert talk.dialogue.waiting == ["one"]
    talk.dialogue.use("fake")
    await talk.dialogue.finished()
    assert talk.texts == ["one", "Aye."]
    assert talk.backend.loads == [None, "fake"]


async def test_another_model_is_loaded_for_the_next_answer(make_talk):
    talk = make_talk()
    await talk.says("one")
    talk.dialogue.use("other")
    await talk.says("two")
    assert talk.backend.loads == [None, "other"]


async def test_a_model_that_cannot_be_loaded_leaves_the_one_before(make_talk):
    talk = make_talk()
    await talk.dialogue.load("first", lambda _fraction: None)
    talk.backend._load_errors.append(ModelNotFoundError("no such model"))
    with pytest.raises(ModelNotFoundError):
        await talk.dialogue.load("other", lambda _fraction: None)
    talk.backend.ready.clear()
    loading = asyncio.create_task(talk.dialogue.load("large", lambda _fraction: None))
    await asyncio.sleep(0)
    loading.cancel()
    await asyncio.wait((loading,))
    talk.backend.ready.set()
    await talk.says("one")
    assert talk.backend.loads == ["first", "other", "large", "first"]


async def test_a_model_is_not_changed_under_an_answer(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    with pytest.raises(UsageError, match="stop it"):
        await talk.dialogue.load("other", lambda _fraction: None)


async def test_after_an_engine_has_died_the_model_is_loaded_again(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    talk.model.die()
    await talk.dialogue.finished()
    assert talk.dialogue.path[-1].state is State.FAILED
    assert "died" in talk.dialogue.path[-1].error
    await talk.says("two")
    assert talk.dialogue.path[-1].state is State.COMPLETE
    assert len(talk.backend.loads) == 2


@pytest.mark.parametrize(
    ("error", "loads"), [(ServerError("the server is gone"), 2), (TemplateMissingError("no template"), 1)]
)
async def test_what_cannot_be_answered_is_told_and_the_next_one_is_tried(make_talk, error, loads):
    talk = make_talk()
    await talk.says("one")
    generate = talk.model.generate

    async def refuse(_ask):
        talk.model.generate = generate
        raise error
        yield

    talk.model.generate = refuse
    talk.dialogue.say(Draft("two"))
    talk.dialogue.say(Draft("three"))
    await talk.dialogue.finished()
    assert f"told {error}" in talk.listener.told_words
    assert talk.texts == ["one", "Aye.", "two", "", "three", "Aye."]
    assert len(talk.backend.loads) == loads


async def test_a_load_that_fails_is_told_and_tried_again_with_the_next_message(make_talk):
    talk = make_talk("Aye.", EngineCrashedError("it died"))
    await talk.says("one")
    assert talk.listener.told_words == ["told it died"]
    await talk.says("two")
    assert talk.texts == ["one", "Aye.", "two", "Aye."]


async def test_choices_are_kept_until_they_are_given_back(make_talk):
    talk = make_talk()
    talk.dialogue.choose(NamedOptions(SamplingChoice(temperature=0.5), max_tokens=9))
    talk.dialogue.choose(NamedOptions(SamplingChoice(seed=7)))
    await talk.says("one")
    talk.dialogue.choose(None)
    await talk.says("two")
    first, second = talk.model.asked
    assert (first.sampling, first.max_tokens) == (SamplingChoice(temperature=0.5, seed=7), 9)
    assert (second.sampling, second.max_tokens) == (SamplingChoice(), None)
    assert first.id != second.id


async def test_what_an_edit_costs(make_talk):
    talk = make_talk()
    await talk.says("one")
    assert await talk.dialogue.cost_of(talk.dialogue.path[0], "uno!") is not None


async def test_another_branch_that_was_opened_before_the_answer_began_gets_no_part_of_it(make_talk):
    talk = make_talk()
    await talk.says("one")
    talk.dialogue.answer_again(talk.dialogue.path[-1])
    await talk.dialogue.finished()
    talk.model.tokenised.clear()
    talk.dialogue.say(Draft("two"))
    while len(talk.model.asked) < 3:
        await asyncio.sleep(0)
    await talk.dialogue.turn(talk.dialogue.path[1], -1)
    talk.listener.told_words.clear()
    talk.model.tokenised.set()
    await talk.dialogue.finished()
    assert talk.listener.told_words == ["opened"]
    assert talk.texts == ["one", "Aye."]
    await talk.dialogue.turn(talk.dialogue.path[1], 1)
    assert talk.texts == ["one", "Aye.", "two", "Aye."]


async def test_what_could_not_be_forgotten_is_told(make_talk):
    talk = make_talk()
    await talk.says("one")

    async def forget(_conversation):
        raise ServerError("the server is gone")

    talk.backend.forget = forget
    await talk.dialogue.delete_conversation(talk.dialogue.conversation.id)
    assert talk.listener.told_words[-1] == "told not all that is cached of it could be forgotten: the server is gone"


async def test_a_stop_reaches_the_model_that_answers_also_after_another_one_was_chosen(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    talk.dialogue.use("other")
    await talk.dialogue.stop()
    await talk.dialogue.finished()
    assert talk.dialogue.path[-1].answered is not None
    assert talk.dialogue.path[-1].state is State.CANCELLED
