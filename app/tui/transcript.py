"""The messages of a conversation on the screen, with a cost that depends neither on their number nor on their length.

Only some fifty messages have widgets; the others come as the user scrolls to them. What streams is painted a few times a second,
however fast it comes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from pinyon.app.history.records import State
from pinyon.app.tui.commands import key_of
from pinyon.app.tui.look import look_of
from pinyon.app.tui.message_view import MessageView
from pinyon.app.tui.safe_text import safe_text
from pinyon.app.tui.shown import MessageAction, Shown, actions_of
from pinyon.app.tui.steady_scroll import SteadyScroll
from pinyon.app.tui.text_view import TextView
from pinyon.app.tui.typesetter import Typesetter

if TYPE_CHECKING:
    from textual.timer import Timer

_LIVE = 50
_MORE = 6
_PAINT_S = 0.07


@dataclass
class _Stream:
    """An answer on its way."""

    shown: Shown
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    reasoning_tokens: int = 0
    _seen: tuple[int, int, int] = (0, 0, 0)

    def so_far(self) -> Shown:
        return replace(
            self.shown,
            text=self.shown.text + "".join(self.text),
            reasoning=self.shown.reasoning + "".join(self.reasoning),
            reasoning_tokens=self.shown.reasoning_tokens + self.reasoning_tokens,
        )

    def unseen(self) -> tuple[str, str, int]:
        """Return text, reasoning and its tokens since the last call."""
        text, reasoning, tokens = self._seen
        self._seen = len(self.text), len(self.reasoning), self.reasoning_tokens
        return "".join(self.text[text:]), "".join(self.reasoning[reasoning:]), self.reasoning_tokens - tokens


class Transcript(SteadyScroll):
    """The messages, oldest above. Up and down choose the one that actions apply to."""

    DEFAULT_CSS = """
    Transcript {
        align-horizontal: center;
        scrollbar-gutter: stable;
        & > .news {
            dock: bottom;
            display: none;
            width: 100%;
            text-align: center;
            background: $primary-muted;
            color: $text-primary;
        }
        &.-news > .news {
            display: block;
        }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "Previous message", show=False, id="message.up"),
        Binding("down", "choose(1)", "Next message", show=False, id="message.down"),
        Binding("escape", "unchoose", "No message", show=False, id="message.none"),
        Binding("enter", "toggle_reasoning", "Reasoning", show=False, id="message.reasoning"),
        Binding("home", "show_start", "To the start", show=False, id="transcript.start"),
        Binding("end", "follow", "To the end", show=False, id="transcript.end"),
        Binding(key_of("edit"), "act('edit')", "Edit", show=False, id="edit"),
        Binding(key_of("regenerate"), "act('regenerate')", "Regenerate", show=False, id="regenerate"),
        Binding(key_of("go_on"), "act('continue')", "Continue", show=False, id="go_on"),
        Binding(key_of("previous"), "act('previous')", "Previous version", show=False, id="previous"),
        Binding(key_of("next"), "act('next')", "Next version", show=False, id="next"),
        Binding(key_of("copy"), "act('copy')", "Copy", show=False, id="copy"),
        Binding(key_of("delete"), "act('delete')", "Delete", show=False, id="delete"),
    ]

    class Action(Message):
        """The user wants something done with a message."""

        def __init__(self, message: int, action: MessageAction) -> None:
            super().__init__()
            self.message = message
            self.action = action

    class FollowChanged(Message):
        """The view follows the end, or stops to. `news`: text has come that was not on the screen."""

        def __init__(self, following: bool, news: bool) -> None:
            super().__init__()
            self.following = following
            self.news = news

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[Shown] = []
        self._first = 0  # of the messages that have a view; the views follow one another
        self._views: dict[int, MessageView] = {}
        self._loading = False
        self._stream: _Stream | None = None
        self._paint: Timer | None = None
        self._chosen: int | None = None
        self._news = False
        self._told = True, False
        self._typesetter = Typesetter(self._nearest_texts)
        self._news_line = Static(Content("↓ new text"), classes="news")

    def compose(self) -> ComposeResult:
        yield self._news_line

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self._restyle())
        self._typesetter.look = look_of(self.app)
        self.run_worker(self._typesetter.run(), name="typesetter")

    # Messages

    async def show(self, messages: Sequence[Shown]) -> None:
        """Show these messages and no others, from the end. The last one may be streaming."""
        self._messages = list(messages)
        self._stream = _Stream(messages[-1]) if messages and messages[-1].state is State.STREAMING else None
        self._chosen = None
        await self._show_from(len(self._messages) - _MORE)
        self.follow()

    async def add(self, shown: Shown) -> None:
        """Add a message at the end."""
        self._append(shown)

    def begin(self, shown: Shown) -> None:
        """Add an answer that will stream."""
        self._stream = _Stream(shown)
        self._append(shown)

    def append(self, text: str, reasoning: str = "", *, reasoning_tokens: int = 1) -> None:
        """Take what came of the streaming answer. It is painted later, with what else will have come.

        `reasoning_tokens` count where there is reasoning.
        """
        if self._stream is None:
            return
        if text:
            self._stream.text.append(text)
        if reasoning:
            self._stream.reasoning.append(reasoning)
            self._stream.reasoning_tokens += reasoning_tokens
        if self._paint is None:
            self._paint = self.set_timer(_PAINT_S, self._paint_stream)

    def finish(self, shown: Shown) -> None:
        """Show a message as it is now: the streaming one in the end, or another one whose figures or versions have changed."""
        if self._stream is not None and self._stream.shown.id == shown.id:
            self._paint_stream()
            self._stream = None
        self._messages = [shown if message.id == shown.id else message for message in self._messages]
        view = self._views.get(shown.id)
        if view is not None and not view.finish(shown):
            self._views[shown.id] = self._new_view(shown)
            self.mount(self._views[shown.id], after=view)
            view.remove()
        self._typesetter.wake()

    def copied_text(self, message: int) -> str:
        """Return what copying a message gives: its text as it came, less control codes."""
        return safe_text(next((self._so_far(shown).text for shown in self._messages if shown.id == message), ""))

    async def settled(self) -> None:
        """Wait until everything that came is painted and set."""
        self._paint_stream()
        await self._typesetter.done()

    def _so_far(self, shown: Shown) -> Shown:
        return self._stream.so_far() if self._stream is not None and self._stream.shown.id == shown.id else shown

    def _new_view(self, shown: Shown) -> MessageView:
        if self._stream is not None and self._stream.shown.id == shown.id:
            self._stream.unseen()  # the view begins with all of it
        view = MessageView(self._so_far(shown))
        view.selected = shown.id == self._chosen
        return view

    def _append(self, shown: Shown) -> None:
        live_end = self.has_end
        self._messages.append(shown)
        if live_end:
            self._views[shown.id] = self._new_view(shown)
            self.mount(self._views[shown.id])
            if self.following:
                self._drop_first()
        self._tell_news()

    def _paint_stream(self) -> None:
        if self._paint is not None:
            self._paint.stop()
            self._paint = None
        if self._stream is None:
            return
        view = self._views.get(self._stream.shown.id)
        text, reasoning, tokens = self._stream.unseen()
        if text or reasoning:
            if view is not None:
                view.feed(text, reasoning, tokens)
                self._typesetter.wake()
            self._tell_news()

    # Which messages have views

    @property
    def has_end(self) -> bool:
        return self._first + len(self._views) == len(self._messages)

    async def _show_from(self, first: int) -> None:
        """Give views to some messages from this one on, and to no others."""
        self._first = max(0, first)
        await self.remove_children(MessageView)
        shown = self._messages[self._first : self._first + _MORE]
        self._views = {message.id: self._new_view(message) for message in shown}
        await self.mount_all(self._views.values())

    def moved(self) -> None:
        self.call_next(self._look_around)

    async def _look_around(self) -> None:
        """Tell whether the end is followed, and give views to the messages that the screen comes near to."""
        if self.following:
            self._news = False
        self._tell()
        screen = self.size.height
        if self._loading or not screen:
            return
        self._loading = True
        try:
            if self._first and self.scroll_y < screen:
                await self._load_older()
            elif not self.has_end and self.scroll_y > self.max_scroll_y - screen:
                await self._load_newer()
        finally:
            self._loading = False

    async def _load_older(self) -> None:
        first = max(0, self._first - _MORE)
        older = {shown.id: self._new_view(shown) for shown in self._messages[first : self._first]}
        self._first, self._views = first, {**older, **self._views}
        await self.mount_all(older.values(), after=self._news_line)
        for message in list(self._views)[_LIVE:]:
            self._views.pop(message).remove()

    async def _load_newer(self) -> None:
        end = self._first + len(self._views)
        newer = {shown.id: self._new_view(shown) for shown in self._messages[end : end + _MORE]}
        self._views |= newer
        await self.mount_all(newer.values())
        self._drop_first()

    def _drop_first(self) -> None:
        for message in list(self._views)[:-_LIVE]:
            self._views.pop(message).remove()
            self._first += 1

    # Following

    def _tell_news(self) -> None:
        if not self.following:
            self._news = True
            self._tell()

    def _tell(self) -> None:
        state = self.following, self._news
        if state != self._told:
            self._told = state
            self.set_class(self._news, "-news")
            self.post_message(self.FollowChanged(*state))

    async def action_follow(self) -> None:
        """Show the end and follow it."""
        if not self.has_end:
            await self._show_from(len(self._messages) - _MORE)
        self.follow()

    async def action_show_start(self) -> None:
        if self._first:
            await self._show_from(0)
        self.scroll_home(animate=False)

    # Setting

    def _restyle(self) -> None:
        self._typesetter.look = look_of(self.app)
        for view in self._views.values():
            view.body.unset()
        self._typesetter.wake()

    def _nearest_texts(self) -> Iterator[tuple[TextView, int]]:
        for view, row in self.by_distance():
            for text in view.texts:
                yield text, row

    def on_text_view_unset(self, event: TextView.Unset) -> None:
        event.stop()
        self._typesetter.wake(when_calm=event.was_set)

    # Choosing and acting

    @property
    def selected(self) -> int | None:
        """The message that was chosen."""
        return self._chosen

    def act(self, action: MessageAction) -> None:
        """Ask for an action on the chosen message, else on the last, where it has that action."""
        shown = next((shown for shown in reversed(self._messages) if self._chosen in (None, shown.id)), None)
        if shown is not None and action in actions_of(shown):
            self.post_message(self.Action(shown.id, action))

    def action_act(self, action: str) -> None:
        self.act(MessageAction(action))

    async def action_choose(self, step: int) -> None:
        """Go on by one message; within one that is longer than the screen by half a screen."""
        if self._chosen is None:
            nearest = self.by_distance()
            await self._choose(len(self._messages) - 1 if self.following or not nearest else self._index(nearest[0][0]))
            return
        view = self._views.get(self._chosen)
        if view is not None and self.reaches_out(view, step):
            self.scroll_relative(y=step * (self.size.height // 2), animate=False)
        else:
            await self._choose([shown.id for shown in self._messages].index(self._chosen) + step)

    def action_unchoose(self) -> None:
        self._mark(None)
        raise SkipAction  # the key stops an answer, too

    def action_toggle_reasoning(self) -> None:
        """Show or hide what the chosen message, else the last that has reasoning, was thought out with."""
        views = [view for message, view in self._views.items() if view.reasoning and self._chosen in (None, message)]
        if views and (reasoning := views[-1].reasoning):
            reasoning.expanded = not reasoning.expanded

    async def on_message_view_clicked(self, event: MessageView.Clicked) -> None:
        event.stop()
        self._mark(event.message)
        if event.action is not None:
            self.act(event.action)

    def _index(self, view: MessageView) -> int:
        return self._first + list(self._views).index(view.shown.id)

    async def _choose(self, index: int) -> None:
        """Choose the message at an index and bring it to the screen; past the end, none, and follow."""
        if index >= len(self._messages):
            self._mark(None)
            await self.action_follow()
            return
        index = max(0, index)
        while index < self._first:
            await self._load_older()
        while index >= self._first + len(self._views):
            await self._load_newer()
        shown = self._messages[index]
        self._mark(shown.id)
        self.scroll_to_widget(self._views[shown.id], animate=False)

    def _mark(self, message: int | None) -> None:
        self._chosen = message
        for view in self._views.values():
            if view.selected != (view.shown.id == message):
                view.selected = not view.selected
