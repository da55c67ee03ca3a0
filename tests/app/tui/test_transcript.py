"""The transcript in a running app: what it shows, what it follows, and what it asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from markdown_texts import hostile_text
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from pinyon.app.history.records import Role, State
from pinyon.app.tui.message_view import MessageView
from pinyon.app.tui.safe_text import safe_text
from pinyon.app.tui.shown import MessageAction, Shown, actions_of
from pinyon.app.tui.transcript import Transcript

R14 = "[/INST] [0] [bold [/ a[b + [@click=app.quit]x[/]"


class Screen(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.transcript = Transcript()
        self.actions: list[tuple[int, MessageAction]] = []

    def compose(self) -> ComposeResult:
        yield self.transcript

    def on_transcript_action(self, event: Transcript.Action) -> None:
        self.actions.append((event.message, event.action))

    @property
    def rows(self) -> list[str]:
        """The text on the screen, without the scrollbar."""
        return [
            "".join(segment.text for segment in strip)[:-2].rstrip()
            for strip in self.screen._compositor.render_strips()
        ]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)


@asynccontextmanager
async def running(
    *shown: Shown, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[Screen, Transcript, Pilot[None]]]:
    app = Screen()
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        await app.transcript.show(shown)
        await settle(pilot)
        app.transcript.focus()
        yield app, app.transcript, pilot


async def settle(pilot: Pilot[None]) -> None:
    """Wait until what was asked for is on the screen."""
    for _ in range(2):
        await pilot.pause()
        await pilot.app.transcript.settled()
    await pilot.pause()


def said(number: int, text: str = "", **fields: object) -> Shown:
    role = Role.USER if number % 2 else Role.ASSISTANT
    return Shown(number, role, text or f"message {number}", **fields)


def conversation(messages: int) -> list[Shown]:
    return [said(number) for number in range(1, messages + 1)]


STREAMING = Shown(1, Role.ASSISTANT, state=State.STREAMING)


async def test_an_answer_streams_plain_and_is_set_when_its_blocks_close() -> None:
    async with running() as (app, transcript, pilot):
        transcript.begin(STREAMING)
        transcript.append("Some **bo")
        await settle(pilot)
        assert "Some **bo" in app.text
        transcript.append("ld** text.\n\n- op")
        await settle(pilot)
        assert "Some bold text." in app.text
        assert "- op" in app.text
        transcript.append("en")
        transcript.finish(Shown(1, Role.ASSISTANT, "Some **bold** text.\n\n- open", footer="12.0 tok/s"))
        await settle(pilot)
        assert [row.strip() for row in app.rows[:5]] == ["Some bold text.", "", "• open", "12.0 tok/s", ""]


async def test_pieces_are_painted_together() -> None:
    async with running() as (_, transcript, pilot):
        transcript.begin(STREAMING)
        await settle(pilot)
        view = transcript.query_one(MessageView)
        fed: list[str] = []
        feed = view.feed
        view.feed = lambda text, *rest: (fed.append(text), feed(text, *rest))
        for _ in range(1000):
            transcript.append("x")
        await settle(pilot)
        assert fed == ["x" * 1000]


async def test_a_cut_answer_goes_on_in_its_place() -> None:
    async with running(said(2, "first half,", state=State.CANCELLED), said(4)) as (app, transcript, pilot):
        transcript.begin(said(2, "first half,", state=State.STREAMING))
        transcript.append(" second half")
        await settle(pilot)
        assert [row.strip() for row in app.rows[:3]] == ["first half, second half", "answering…", ""]
        transcript.finish(said(2, "first half, second half"))
        await settle(pilot)
        assert [row.strip() for row in app.rows[:3]] == ["first half, second half", "", "message 4"]


async def test_what_comes_before_the_view_is_there_is_not_lost() -> None:
    async with running() as (app, transcript, pilot):
        transcript.begin(STREAMING)
        transcript.append("text", "thought")
        transcript._paint_stream()
        transcript.finish(Shown(1, Role.ASSISTANT, "text", "thought"))
        await settle(pilot)
        assert [row.strip() for row in app.rows[:2]] == ["▸ thought 0 s, 1 token", "text"]


async def test_an_end_that_differs_from_what_streamed_is_what_is_shown() -> None:
    async with running() as (app, transcript, pilot):
        transcript.begin(STREAMING)
        transcript.append("streamed")
        await settle(pilot)
        transcript.finish(Shown(1, Role.ASSISTANT, "final"))
        await settle(pilot)
        assert "final" in app.text
        assert "streamed" not in app.text


@pytest.mark.parametrize("role", list(Role))
async def test_markup_is_shown_literally_everywhere(role: Role) -> None:
    shown = Shown(
        1, role, f"text {R14}", f"thought {R14}", State.FAILED, f"foot {R14}", (0, 2), (f"file {R14}",), f"error {R14}"
    )
    async with running(shown, size=(120, 24)) as (app, transcript, pilot):
        transcript.action_toggle_reasoning()
        await pilot.press("up")
        await settle(pilot)
        text = " ".join(app.text.replace("█", " ").split())
        for what in ("text", "thought", "foot", "file", "error"):
            assert f"{what} {R14}" in text
        await pilot.click(MessageView, offset=(40, 1))
        assert app.is_running


async def test_hostile_texts_leave_the_app_alive_and_no_control_code_on_the_screen() -> None:
    async with running() as (app, transcript, pilot):
        for seed in range(24):
            text = hostile_text(seed)
            transcript.begin(Shown(seed + 1, Role.ASSISTANT, state=State.STREAMING))
            for start in range(0, len(text), 3):
                transcript.append(text[start : start + 3], text[start : start + 2])
            transcript.finish(
                Shown(seed + 1, Role.ASSISTANT, text, error=text, footer=text, attachments=(text,), reasoning="x")
            )
            await settle(pilot)
            assert all(safe_text(row) == row for row in app.rows)
        assert app.is_running


async def test_a_control_sequence_split_over_pieces_is_not_put_together() -> None:
    async with running() as (app, transcript, pilot):
        transcript.begin(STREAMING)
        for piece in ("a\x1b", "]52;c;", "SGk=\x07b"):
            transcript.append(piece)
            await settle(pilot)
        assert "a]52;c;SGk=b" in app.text


@pytest.mark.parametrize(
    "text", ["漢字かな交じり文", "👩‍👩‍👧‍👦 family", "e\u0301te\u0301", "שלום עולם", "\u200f\u0639\u0631\u0628\u064a"]
)
async def test_scripts_are_shown_whole(text: str) -> None:
    async with running(said(1, text), said(2, text)) as (app, _, _pilot):
        assert app.text.count(text) == 2


async def test_a_large_paste_is_shown_to_its_end() -> None:
    paste = "\n".join(f"line {number} {'x' * 32}" for number in range(25_000))
    assert len(paste) > 2**20
    async with running() as (app, transcript, pilot):
        await transcript.add(Shown(1, Role.USER, paste))
        await settle(pilot)
        assert "line 24999" in app.text
        transcript.scroll_to(y=transcript.max_scroll_y // 2, animate=False)
        await settle(pilot)
        first = int(app.rows[0].split("line ")[1].split()[0])
        assert [row.split("line ")[1].split()[0] for row in app.rows] == [str(first + index) for index in range(24)]


async def test_one_endless_line_is_shown() -> None:
    async with running(Shown(1, Role.USER, "word " * 200_000)) as (app, transcript, _pilot):
        assert transcript.max_scroll_y > 10_000
        assert app.text.count("word") > 300


async def test_only_some_messages_have_widgets_and_the_others_come_on_scroll() -> None:
    async with running(*conversation(90)) as (app, transcript, pilot):
        assert "message 90" in app.text
        assert len(transcript.query(MessageView)) <= 50
        seen = set()
        for _ in range(100):
            seen |= {view.shown.id for view in transcript.query(MessageView)}
            assert len(transcript.query(MessageView)) <= 50
            if 1 in seen:
                break
            await pilot.press("pageup")
            await settle(pilot)
        assert seen == set(range(1, 91))
        await pilot.press("home")
        await settle(pilot)
        assert app.rows[0].endswith("message 1")
        await pilot.press("end")
        await settle(pilot)
        assert "message 90" in app.text
        assert len(transcript.query(MessageView)) <= 50


async def test_scrolling_down_again_loads_newer_messages() -> None:
    async with running(*conversation(60)) as (app, transcript, pilot):
        await pilot.press("home")
        await settle(pilot)
        for _ in range(100):
            await pilot.press("pagedown")
            await settle(pilot)
            if transcript.following:
                break
        assert "message 60" in app.text


async def test_what_loads_above_does_not_move_the_text_under_the_eye() -> None:
    async with running(*conversation(60)) as (app, transcript, pilot):
        transcript.scroll_to(y=transcript.max_scroll_y - 10, animate=False)
        await settle(pilot)
        before, loaded = app.rows[:20], len(transcript.query(MessageView))
        await transcript._load_older()
        await settle(pilot)
        assert len(transcript.query(MessageView)) > loaded
        assert app.rows[:20] == before


async def test_following_stops_when_the_user_scrolls_up_and_news_are_announced() -> None:
    async with running(*conversation(30)) as (app, transcript, pilot):
        transcript.begin(Shown(31, Role.ASSISTANT, state=State.STREAMING))
        transcript.append("begin\n")
        await settle(pilot)
        assert "begin" in app.text
        await pilot.press("pageup")
        await settle(pilot)
        assert not transcript.following
        before = app.rows[:20]
        transcript.append("line\n" * 100)
        await settle(pilot)
        assert app.rows[:20] == before
        assert "new text" in app.rows[-1]
        await pilot.click(".news")
        await settle(pilot)
        assert transcript.following
        assert "new text" not in app.text
        transcript.append("the very end\n")
        await settle(pilot)
        assert "the very end" in app.text


async def test_scrolling_where_all_is_visible_does_not_stop_following() -> None:
    async with running(said(1)) as (app, transcript, pilot):
        transcript.scroll_up(animate=False)
        transcript.begin(Shown(2, Role.ASSISTANT, state=State.STREAMING))
        transcript.append("line\n" * 100 + "end")
        await settle(pilot)
        assert [row.strip() for row in app.rows[-3:-1]] == ["end", "answering…"]


async def test_resizing_keeps_the_place_and_everything_in_it() -> None:
    messages = [said(number, f"start{number} " + "word " * 100 + f"end{number}") for number in range(1, 41)]
    async with running(*messages) as (app, transcript, pilot):
        view = next(view for view in transcript.query(MessageView) if view.shown.id == 36)
        transcript.scroll_to_widget(view, top=True, animate=False)
        await settle(pilot)
        assert app.rows[0].strip().startswith("start36")
        for width, height in ((40, 10), (200, 60), (20, 5), (100, 30), (1, 1), (80, 24)) * 3:
            await pilot.resize_terminal(width, height)
        await settle(pilot)
        await pilot.pause(0.2)
        await settle(pilot)
        assert any(row.strip().startswith("start36") for row in app.rows[:3])


async def test_a_resize_storm_while_an_answer_streams_ends_in_the_same_text() -> None:
    text = "Some **prose** here.\n\n" + "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 40 + "\n" + "- item\n" * 80
    async with running() as (_, transcript, pilot):
        transcript.begin(STREAMING)
        for index in range(0, len(text), 60):
            transcript.append(text[index : index + 60])
            await pilot.resize_terminal(20 + index % 150, 5 + index % 50)
        await pilot.resize_terminal(80, 24)
        transcript.finish(Shown(1, Role.ASSISTANT, text))
        await pilot.pause(0.2)
        await settle(pilot)
        stormed = transcript.query_one(MessageView).body
        rows = [stormed.render_line(y).text for y in range(stormed.row_count)]
    async with running(Shown(1, Role.ASSISTANT, text)) as (_, transcript, _pilot):
        calm = transcript.query_one(MessageView).body
        assert rows == [calm.render_line(y).text for y in range(calm.row_count)]


async def test_a_theme_sets_markdown_anew() -> None:
    async with running(said(2, "# Head")) as (app, transcript, pilot):
        body = transcript.query_one(MessageView).body
        dark = body.render_line(0)
        app.theme = "textual-light"
        await settle(pilot)
        assert body.render_line(0).text == dark.text
        assert body.render_line(0) != dark


async def test_up_and_down_choose_and_actions_go_to_the_chosen() -> None:
    async with running(*conversation(4)) as (app, transcript, pilot):
        assert transcript.selected is None
        await pilot.press("r")
        assert app.actions == [(4, MessageAction.REGENERATE)]
        await pilot.press("up")
        assert transcript.selected == 4
        await pilot.press("up", "up")
        assert transcript.selected == 2
        await pilot.press("down", "e", "y")
        assert transcript.selected == 3
        await pilot.press("left", "r")  # it has neither versions nor an answer
        assert app.actions[1:] == [(3, MessageAction.EDIT), (3, MessageAction.COPY)]
        await pilot.press("down", "down")
        assert transcript.selected is None
        assert transcript.following


async def test_choosing_goes_on_to_messages_without_widgets() -> None:
    async with running(*conversation(50)) as (app, transcript, pilot):
        await pilot.press(*["up"] * 35)
        await settle(pilot)
        assert transcript.selected == 16
        assert any("message 16" in row for row in app.rows)


async def test_a_long_message_is_scrolled_through_before_the_next_is_chosen() -> None:
    async with running(said(1), said(2, "line\n\n" * 100)) as (_, transcript, pilot):
        await pilot.press("up")
        before = transcript.scroll_y
        await pilot.press("up")
        await pilot.pause()
        assert transcript.selected == 2
        assert transcript.scroll_y < before


async def test_other_messages_take_the_place_of_those_shown() -> None:
    async with running(said(1), said(2, "one version")) as (app, transcript, pilot):
        await pilot.press("up")
        await transcript.show([said(1), said(2, "another version")])
        await settle(pilot)
        assert "another version" in app.text
        assert "one version" not in app.text
        assert transcript.selected is None
        await transcript.show([])
        await settle(pilot)
        assert app.text.strip() == ""


async def test_versions_are_counted_and_can_be_changed() -> None:
    async with running(said(2, siblings=(1, 3))) as (app, _, pilot):
        assert "2/3" in app.text
        await pilot.press("left", "right")
        assert app.actions == [(2, MessageAction.PREVIOUS), (2, MessageAction.NEXT)]


async def test_the_mouse_chooses_and_acts() -> None:
    async with running(said(1), said(2)) as (app, transcript, pilot):
        await pilot.click(transcript.query(MessageView).last().body)
        await settle(pilot)
        assert transcript.selected == 2
        row = next(index for index, text in enumerate(app.rows) if "regenerate" in text)
        await pilot.click(offset=(app.rows[row].index("delete"), row))
        await pilot.pause()
        assert app.actions == [(2, MessageAction.DELETE)]


async def test_the_mouse_takes_text() -> None:
    async with running(said(2, "alpha beta gamma\n\ndelta")) as (app, transcript, pilot):
        body = transcript.query_one(MessageView).body
        await pilot.mouse_down(body, offset=(6, 0))
        await pilot.hover(body, offset=(3, 2))
        await pilot.mouse_up(body, offset=(3, 2))
        await pilot.pause()
        assert app.screen.get_selected_text() == "beta gamma\n\ndelt"


async def test_states_and_errors_stand_in_the_foot() -> None:
    cut, failed = said(2, state=State.CANCELLED), said(4, state=State.FAILED, error="the engine crashed")
    async with running(cut, failed) as (app, _, _pilot):
        assert "stopped" in app.text
        assert "the engine crashed" in app.text


def test_only_a_cut_answer_can_be_gone_on_with() -> None:
    for is_cut in (True, False):
        actions = actions_of(Shown(1, Role.ASSISTANT, "It looks", is_cut=is_cut))
        assert (MessageAction.CONTINUE in actions) is is_cut


async def test_without_a_choice_a_key_acts_on_the_last_message_that_it_suits() -> None:
    async with running(said(1), said(2), said(3), said(4)) as (app, transcript, pilot):
        transcript.act(MessageAction.EDIT)
        await settle(pilot)
        assert app.actions == [(3, MessageAction.EDIT)]


ATTACHED = Shown(
    1, Role.USER, "What is it?", attachments=("a.py 7 tokens", "b[/].md 4 tokens"), attached_text="a.py\n\x1b[2Jcode"
)


async def test_what_is_attached_is_folded_and_a_click_shows_it() -> None:
    async with running(ATTACHED, size=(40, 12)) as (app, transcript, pilot):
        shown = [row.strip("▌▎█ ") for row in app.rows if row.strip("▌▎█ ")]
        assert shown == ["▸ a.py 7 tokens", "b[/].md 4 tokens", "What is it?"]
        await pilot.click(transcript.views[1].attachments)
        await settle(pilot)
        shown = [row.strip("▌▎█ ") for row in app.rows if row.strip("▌▎█ ")]
        assert [row for row in shown if "tokens" not in row][:3] == ["│ a.py", "│ [2Jcode", "What is it?"]
        assert "▾ a.py 7 tokens" in app.text
        await pilot.click(transcript.views[1].attachments)
        await settle(pilot)
        assert "code" not in app.text


async def test_attachments_are_an_action_of_questions_whose_text_is_folded() -> None:
    known, unknown = ATTACHED, Shown(2, Role.USER, "a.py code", attachments=("a.py 7 tokens",))
    assert MessageAction.ATTACHMENTS in actions_of(known)
    assert MessageAction.ATTACHMENTS not in actions_of(unknown)
    async with running(known, unknown) as (app, transcript, pilot):
        assert "a.py 7 tokens" in app.text
        await pilot.press("a")
        await pilot.pause()
        assert app.actions == [(1, MessageAction.ATTACHMENTS)]
        await transcript.toggle_attachments(2)  # there is nothing to open
        assert transcript.views[2].attachments is None


async def test_attachments_far_above_are_brought_to_the_screen() -> None:
    others = [Shown(number, Role.USER, f"question {number}") for number in range(2, 200)]
    async with running(ATTACHED, *others) as (app, transcript, pilot):
        assert 1 not in transcript.views
        await transcript.toggle_attachments(1)
        await settle(pilot)
        assert "│ a.py" in app.text
        assert transcript.selected == 1
