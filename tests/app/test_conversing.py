"""From a conversation to an answer: what the model is shown, and what is written down whatever happens."""

import contextlib

import pytest
from fake_backend import ChatModel
from fake_service import raises, says

from pinyon.app.conversing import Choices, EditCost, as_chat, context_taken, title_of, what_edit_costs, written
from pinyon.app.history.history import History
from pinyon.app.history.records import Role, State
from pinyon.engine.errors import NativeError
from pinyon.engine.events import Chunk, Failed, Finished, FinishReason, Timings, Usage
from pinyon.models.chat_template import Message
from pinyon.models.errors import TemplateMissingError

CHOICES = Choices()


@pytest.fixture
def history():
    with contextlib.closing(History.in_memory()) as history:
        yield history


@pytest.fixture
async def model():
    model = ChatModel(says("A bird."))
    yield model
    await model.close()


def begun(history, *texts):
    """A conversation of these texts, the user's first."""
    conversation = history.start(title="birds", model="fake")
    parent = None
    for place, text in enumerate(texts):
        parent = history.add(conversation.id, parent, (Role.USER, Role.ASSISTANT)[place % 2], text).id
    return conversation, parent


def answer(history, model, conversation, parent, choices=CHOICES, begun=None, **settings):
    """Have the path to `parent` answered."""
    chat = as_chat(history.tree(conversation.id).path(parent), "" if begun is None else begun.text)
    return written(history, model, conversation.id, parent, choices.ask(chat, conversation.id), begun, **settings)


async def test_an_answer_is_written_down_with_its_figures(history, model):
    conversation, parent = begun(history, "What is a pinyon jay?")
    updates = [update async for update in answer(history, model, conversation, parent, Choices(max_tokens=20))]
    message = history.tree(conversation.id).path()[-1]
    assert {update.message for update in updates} == {message.id}
    assert (message.parent, message.text, message.state) == (parent, "A bird.", State.COMPLETE)
    assert (message.answered.model, message.answered.digest) == ("fake", "ab" * 32)
    assert message.answered.finish_reason is FinishReason.STOP
    assert message.answered.usage == updates[-1].event.usage
    assert message.answered.reasoning_s == 0.0


async def test_the_model_is_asked_as_chosen_and_for_this_conversation(history, model):
    conversation, parent = begun(history, "Hello")
    async for _ in answer(history, model, conversation, parent, Choices(private=True)):
        pass
    asked = model.asked[0]
    assert (asked.private, asked.conversation) == (True, conversation.id)


async def test_what_came_before_a_close_is_kept_as_cancelled(history, model):
    conversation, parent = begun(history, "Hello")
    async with contextlib.aclosing(answer(history, model, conversation, parent)) as updates:
        async for update in updates:
            if isinstance(update.event, Chunk) and update.event.text:
                break
    message = history.tree(conversation.id).path()[-1]
    assert message.state is State.CANCELLED
    assert message.text
    assert "A bird.".startswith(message.text)
    assert not model.engine.busy


async def test_a_failure_keeps_text_and_reason(history):
    model = ChatModel(raises(3, NativeError("decode failed")))
    conversation, parent = begun(history, "Hello")
    updates = [update async for update in answer(history, model, conversation, parent)]
    message = history.tree(conversation.id).path()[-1]
    assert isinstance(updates[-1].event, Failed)
    assert (message.text, message.state, message.error) == ("aaa", State.FAILED, updates[-1].event.message)


async def test_a_template_that_refuses_is_the_messages_error(history, model):
    async def generate(_ask):
        raise TemplateMissingError("no template")
        yield

    model.generate = generate
    conversation, parent = begun(history, "Hello")
    with pytest.raises(TemplateMissingError):
        async for _ in answer(history, model, conversation, parent):
            pass
    message = history.tree(conversation.id).path()[-1]
    assert (message.state, message.error) == (State.FAILED, "no template")


async def test_a_cut_answer_goes_on_beside_itself(history, model):
    conversation, _ = begun(history, "What is a pinyon jay?", "A jay is")
    cut = history.tree(conversation.id).path()[-1]
    question = cut.parent
    async for update in answer(history, model, conversation, question, begun=cut):
        last = update
    tree = history.tree(conversation.id)
    assert tree.path()[-1].text == "A jay isA bird."
    assert tree.siblings(last.message) == [cut.id, last.message]
    assert model.asked[0].prompt.begun == "A jay is"
    assert isinstance(last.event, Finished)


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        ("rrt", 2.0),
        ("rt", 1.0),
        (".r.r..t", 5.0),
        ("rr", 2.0),  # stopped while it thinks
        ("b", 0.0),
        ("trt", 0.0),  # what comes after text is not thought before it
        ("t", 0.0),
    ],
)
async def test_how_long_it_thought_is_kept_from_the_first_thought_to_the_first_text(history, model, events, seconds):
    chunks = {
        "r": Chunk(0, "", reasoning="thought"),
        "t": Chunk(0, "text"),
        "b": Chunk(0, "text", reasoning="thought"),
        ".": Chunk(0, ""),
    }
    now = [100.0]

    async def generate(_ask):
        for event in events:
            yield chunks[event]
            now[0] += 1
        yield Finished((FinishReason.STOP,), Usage(1, 1), Timings(0, 0, 0), None)

    model.generate = generate
    conversation, parent = begun(history, "Hello")
    async for _ in answer(history, model, conversation, parent, clock=lambda: now[0]):
        pass
    assert history.tree(conversation.id).path()[-1].answered.reasoning_s == seconds


async def test_what_a_branch_takes_of_the_context_is_counted_with_the_answer_so_far(history, model):
    asked = []

    async def estimate(ask):
        asked.append(ask)
        return await ChatModel.estimate(model, ask)

    model.estimate = estimate
    conversation, last = begun(history, "one", "two", "three")
    assert await context_taken(model, history.tree(conversation.id).path(), CHOICES) == len("onetwothree")
    answer = history.add(conversation.id, last, Role.ASSISTANT, "fo", reasoning="hm", state=State.STREAMING)
    history.stream(answer.id, "ur")
    assert await context_taken(model, history.tree(conversation.id).path(), CHOICES) == len("onetwothreefour")
    assert [ask.prompt.begun for ask in asked] == ["", "four"]
    assert await context_taken(model, [], CHOICES) == 0


def test_the_last_instructions_stand_in_front_and_empty_answers_are_left_out(history):
    conversation = history.start(title="", model="")
    parent = None
    for role, text in [
        (Role.SYSTEM, "Be brief."),
        (Role.USER, "Hello"),
        (Role.ASSISTANT, ""),
        (Role.SYSTEM, "Be long."),
        (Role.USER, "Again"),
    ]:
        parent = history.add(conversation.id, parent, role, text, reasoning="thoughts").id
    assert as_chat(history.tree(conversation.id).path()).messages == (
        Message("system", "Be long."),
        Message("user", "Hello"),
        Message("user", "Again"),
    )


async def test_an_edit_costs_what_is_cached_of_the_old_text_and_not_of_the_new(history, model):
    conversation, _ = begun(history, "one", "two", "three")
    second = history.tree(conversation.id).path()[1]
    kept = {"onetwothree": 11, "onetwoother!": 6}

    async def estimate(ask):
        tokens = "".join(message.content for message in ask.prompt.messages)
        return (await ChatModel.estimate(model, ask)).__class__(len(tokens), resident=kept[tokens], compute_s=0.5)

    model.estimate = estimate
    cost = await what_edit_costs(history, model, conversation, second.id, "other!", Choices())
    assert cost == EditCost(prompt_tokens=12, cached_tokens=6, lost_tokens=5, compute_s=0.5)


@pytest.mark.parametrize(
    ("text", "title"),
    [("Hello", "Hello"), ("\n\n  One line \nand more", "One line"), ("x" * 100, "x" * 59 + "…"), (" \n", "")],
)
def test_a_title_is_the_first_line_with_words(text, title):
    assert title_of(text) == title
