"""What waits to be answered, without a screen: its order, stops, models that come, go and die."""

import asyncio

import pytest

from pinyon.app.ask import SamplingChoice
from pinyon.app.errors import ServerError, UsageError
from pinyon.app.history.records import State
from pinyon.app.named_options import NamedOptions
from pinyon.app.tui.draft import Draft
from pinyon.engine.errors import EngineCrashedError
from pinyon.models.errors import ModelNotFoundError, TemplateMissingError
from pinyon.models.memory.kv import KvType


async def test_how_far_a_prompt_is_is_known_until_its_answer_begins(make_talk):
    talk = make_talk()
    seen = []
    talk.listener.heard = lambda event: seen.append((type(event).__name__, talk.dialogue.prefill == event))
    await talk.says("one")
    assert {("Progress", True), ("Chunk", False), ("Finished", False)} == set(seen)
    assert talk.dialogue.prefill is None


async def test_what_is_said_meanwhile_waits_its_turn(make_talk):
    talk = make_talk()
    talk.backend.ready.clear()
    for text in ("one", "two", "three"):
        talk.dialogue.say(Draft(text))
    await asyncio.sleep(0)
    assert talk.dialogue.waiting == ["one", "two", "three"]
    here = talk.dialogue.conversation.id
    await talk.dialogue.open(None)
    assert talk.dialogue.take_back() is None, "it waits in another conversation"
    await talk.dialogue.open(here)
    assert talk.dialogue.take_back() == Draft("three")
    talk.backend.ready.set()
    await talk.dialogue.finished()
    assert talk.texts == ["one", "Aye.", "two", "Aye."]
    assert talk.dialogue.take_back() is None


async def test_an_edit_that_waits_is_not_taken_back(make_talk):
    talk = make_talk("Aye.")
    talk.dialogue.say(Draft("one"))
    await talk.dialogue.finished()
    talk.model.unpaused.clear()
    talk.dialogue.say(Draft("two"))
    await asyncio.sleep(0)
    talk.dialogue.edit(talk.dialogue.path[0], Draft("uno"))
    assert talk.dialogue.take_back() is None
    talk.model.unpaused.set()
    talk.model._step_on()
    await talk.dialogue.finished()
    assert talk.texts[0] == "uno"


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


async def test_closing_keeps_what_waits_also_beside_a_conversation_that_was_deleted_elsewhere(make_talk):
    talk = make_talk()
    talk.backend.ready.clear()
    talk.dialogue.say(Draft("one"))
    talk.history.delete(talk.dialogue.conversation.id)
    await talk.dialogue.open(None)
    talk.dialogue.say(Draft("two"))
    kept = talk.dialogue.conversation.id
    await talk.dialogue.close()
    assert [message.text for message in talk.history.tree(kept).path()] == ["two"]
    assert {each.title for each in talk.history.conversations()} == {"one", "two"}


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
    await talk.dialogue.load("first", None, None, lambda _fraction: None)
    talk.backend._load_errors.append(ModelNotFoundError("no such model"))
    with pytest.raises(ModelNotFoundError):
        await talk.dialogue.load("other", None, None, lambda _fraction: None)
    talk.backend.ready.clear()
    loading = asyncio.create_task(talk.dialogue.load("large", None, None, lambda _fraction: None))
    await asyncio.sleep(0)
    loading.cancel()
    await asyncio.wait((loading,))
    talk.backend.ready.set()
    await talk.says("one")
    assert talk.backend.loads == ["first", "other", "large", "first"]


async def test_a_context_and_a_type_of_kv_that_were_loaded_are_those_from_then_on(make_talk):
    talk = make_talk()
    await talk.dialogue.load("first", 8192, KvType.Q8_0, lambda _fraction: None)
    talk.backend._load_errors.append(ModelNotFoundError("no such model"))
    with pytest.raises(ModelNotFoundError):
        await talk.dialogue.load("other", 4096, KvType.Q4_0, lambda _fraction: None)
    assert (talk.dialogue.context, talk.dialogue.kv_type) == (8192, KvType.Q8_0)
    await talk.says("one")
    assert talk.backend.contexts == [8192, 4096, 8192]
    assert talk.backend.kv_types == ["q8_0", "q4_0", "q8_0"]


async def test_a_model_is_not_changed_under_an_answer(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    with pytest.raises(UsageError, match="stop it"):
        await talk.dialogue.load("other", None, None, lambda _fraction: None)


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


async def test_a_stop_reaches_the_model_that_answers_also_after_another_one_was_chosen(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    talk.dialogue.use("other")
    await talk.dialogue.stop()
    await talk.dialogue.finished()
    assert talk.dialogue.path[-1].answered is not None
    assert talk.dialogue.path[-1].state is State.CANCELLED


async def test_what_waits_for_another_model_is_not_asked_once_its_conversation_is_deleted(make_talk):
    talk = make_talk()
    talk.dialogue.say(Draft("one"))
    talk.dialogue.say(Draft("two"))
    await talk.listener.on_text.wait()
    talk.dialogue.use("other")
    talk.backend.ready.clear()
    async with asyncio.timeout(5):
        while "two" not in talk.texts:
            await asyncio.sleep(0)
    first = talk.dialogue.conversation.id
    await talk.dialogue.delete_conversation(first)
    talk.dialogue.say(Draft("three"))
    talk.backend.ready.set()
    await talk.dialogue.finished()
    assert [ask.conversation for ask in talk.model.asked] == [first, talk.dialogue.conversation.id]
    assert [words for words in talk.listener.told_words if words.startswith("told")] == []
    assert await talk.dialogue.undo()
    assert talk.texts == ["one", "Aye.", "two"]


async def test_what_waits_for_a_conversation_that_is_deleted_elsewhere_is_said_in_one_new_one(make_talk):
    talk = make_talk()
    talk.backend.ready.clear()
    for text in ("one", "two"):
        talk.dialogue.say(Draft(text))
    talk.history.delete(talk.dialogue.conversation.id)
    talk.backend.ready.set()
    await talk.dialogue.finished()
    assert talk.texts == ["one", "Aye.", "two", "Aye."]
    assert (
        sum(words.startswith("told the conversation was deleted elsewhere") for words in talk.listener.told_words) == 1
    )


async def test_a_conversation_that_is_deleted_elsewhere_in_the_middle_of_an_answer_is_told(make_talk):
    talk = make_talk("A long answer that goes on.")
    talk.dialogue.say(Draft("one"))
    await talk.listener.on_text.wait()
    talk.history.delete(talk.dialogue.conversation.id)
    await talk.dialogue.finished()
    assert talk.dialogue.conversation is None
    assert talk.listener.told_words[-2:] == ["told the conversation was deleted elsewhere: this is a new one", "opened"]
    await talk.says("two")
    assert talk.texts == ["two", "A long answer that goes on."]


async def test_what_does_not_fit_is_told_to_be_in_the_way(make_talk):
    talk = make_talk("Aye.")
    talk.dialogue.say(Draft("x" * 5000))
    await talk.dialogue.finished()
    assert (
        "told what does not fit stays in the conversation: leave it out, or begin a new one" in talk.listener.told_words
    )
    await talk.dialogue.delete(talk.dialogue.path[0])
    talk.dialogue.say(Draft("one"))
    await talk.dialogue.finished()
    assert talk.texts == ["one", "Aye."]


async def test_what_was_given_up_so_that_a_model_fits_is_told_when_it_is_loaded(make_talk):
    talk = make_talk("Aye.")
    talk.model.compromises = ("a context of 4,096 tokens instead of the usual 32,768",)
    await talk.says("one")
    await talk.says("two")
    told = "told so that fake fits into memory: a context of 4,096 tokens instead of the usual 32,768"
    assert [words for words in talk.listener.told_words if words.startswith("told")] == [told]
