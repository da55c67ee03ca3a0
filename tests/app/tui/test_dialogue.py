"""The open conversation, without a screen: what is said in it, its branches, deletions, and what is told of it."""

import asyncio

from pinyon.app.errors import ServerError
from pinyon.app.history.records import Role
from pinyon.app.tui.draft import Draft, Piece


async def test_a_title_is_what_was_typed_and_else_what_went_along(make_talk):
    talk = make_talk()
    talk.dialogue.say(Draft("What is this?", (Piece("file.py", "file.py\n```\ncode\n```", 4),)))
    talk.dialogue.say(Draft("", (Piece("other.py", "other.py\n```\ncode\n```", 4),)))
    assert talk.dialogue.conversation.title == "What is this?"
    assert talk.dialogue.waiting == ["What is this?", "other.py"]
    await talk.dialogue.finished()


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
