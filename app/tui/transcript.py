"""The messages of a conversation on the screen, with a cost that depends neither on their number nor on their length.

What streams is painted ten times a second at most, however fast it comes, and less often where that would cost too much.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from pinyon.app.history.records import State
from pinyon.app.tui.commands import key_of
from pinyon.app.tui.live_messages import LiveMessages
from pinyon.app.tui.look import look_of
from pinyon.app.tui.message_view import MessageView
from pinyon.app.tui.pace import Pace
from pinyon.app.tui.shown import MessageAction, Shown, actions_of
from pinyon.app.tui.streaming import Streaming
from pinyon.app.tui.text_view import TextView
from pinyon.app.tui.typesetter import Typesetter

if TYPE_CHECKING:
    from textual.timer import Timer


class Transcript(LiveMessages):
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
        *(
            Binding(key_of(id), action, show=False, id=id)
            for id, action in (  # noqa: A001
                ("up", "choose(-1)"),
                ("down", "choose(1)"),
                ("start", "show_start"),
                ("end", "follow"),
                ("unfold", "toggle_reasoning"),
                ("stop", "unchoose"),
            )
        ),
        *(Binding(key_of(action), f"act('{action}')", show=False, id=action) for action in MessageAction),
    ]

    class Action(Message):
        """The user wants something done with a message."""

        def __init__(self, message: int, action: MessageAction) -> None:
            super().__init__()
            self.message = message
            self.action = action

    def __init__(self) -> None:
        super().__init__()
        self._stream: Streaming | None = None
        self._paint: Timer | None = None
        self._pace = Pace()
        self._chosen: int | None = None
        self._typesetter = Typesetter(self._nearest_texts)

    def compose(self) -> ComposeResult:
        yield Static(Content("↓ new text"), classes="news")

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self._restyle())
        self._typesetter.look = look_of(self.app)
        self.run_worker(self._typesetter.run(), name="typesetter")

    # Messages

    async def show(self, messages: Sequence[Shown]) -> None:
        """Show these messages and no others, from the end. The last one may be streaming."""
        self.messages = list(messages)
        self._stream = Streaming(messages[-1]) if messages and messages[-1].state is State.STREAMING else None
        self._chosen = None
        await self.show_end()
        self.follow()

    async def add(self, shown: Shown) -> None:
        """Add a message at the end."""
        self.add_last(shown)
        self._tell_news()

    def begin(self, shown: Shown) -> None:
        """Add an answer that will stream, or let one that is there already go on."""
        self._stream, self._pace = Streaming(shown), Pace()
        if any(message.id == shown.id for message in self.messages):
            self.replace(shown)
        else:
            self.add_last(shown)
        self._tell_news()

    def append(self, text: str, reasoning: str = "", *, reasoning_tokens: int = 1) -> None:
        """Take what came of the streaming answer. It is painted later, with what else will have come.

        `reasoning_tokens` count where there is reasoning.
        """
        if self._stream is not None:
            self._stream.take(text, reasoning, reasoning_tokens)
            if self._paint is None:
                self._paint = self.set_timer(self._pace.wait_s, self._paint_stream)

    def finish(self, shown: Shown) -> None:
        """Show a message as it is now: the streaming one in the end, or another one whose figures or versions have changed."""
        if self._stream is not None and self._stream.shown.id == shown.id:
            self._paint_stream()
            self._stream = None
        view = self.views.get(shown.id)
        self.replace(shown, with_view=view is not None and not view.finish(shown))
        self._typesetter.wake()

    async def settled(self) -> None:
        """Wait until everything that came is painted and set."""
        self._paint_stream()
        await self._typesetter.done()

    def new_view(self, shown: Shown) -> MessageView:
        if self._stream is not None and self._stream.shown.id == shown.id:
            self._stream.unseen()  # the view begins with all of it
        view = MessageView(self._so_far(shown))
        view.selected = shown.id == self._chosen
        return view

    def _so_far(self, shown: Shown) -> Shown:
        return self._stream.so_far() if self._stream is not None and self._stream.shown.id == shown.id else shown

    def _paint_stream(self) -> None:
        if self._paint is not None:
            self._paint.stop()
            self._paint = None
        if self._stream is None:
            return
        self._pace.take()
        text, reasoning, tokens = self._stream.unseen()
        if text or reasoning:
            if (view := self.views.get(self._stream.shown.id)) is not None:
                view.feed(text, reasoning, tokens)
                self._typesetter.wake()
            self._tell_news()

    # Following

    def _tell_news(self) -> None:
        """Text has come: say so where it is not on the screen."""
        self.set_class(not self.following, "-news")

    async def look_around(self) -> None:
        if self.following:
            self.remove_class("-news")
        await super().look_around()

    async def action_follow(self) -> None:
        """Show the end and follow it."""
        if not self.has_end:
            await self.show_end()
        self.follow()

    async def action_show_start(self) -> None:
        await self.show_start()
        self.scroll_home(animate=False)

    # Setting

    def _restyle(self) -> None:
        self._typesetter.look = look_of(self.app)
        for view in self.views.values():
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

    async def choose(self, message: int | None) -> None:
        """Choose a message and bring its beginning to the screen; None chooses none, and follows the end."""
        self._mark(message)
        if message is None:
            await self.action_follow()
        else:
            self.hold(await self.show_index([shown.id for shown in self.messages].index(message)))

    def act(self, action: MessageAction) -> None:
        """Ask for an action on the chosen message, if it has that action; else on the last one that has."""
        for shown in reversed(self.messages):
            if self._chosen in (None, shown.id) and action in actions_of(shown):
                self.post_message(self.Action(shown.id, action))
                return

    def action_act(self, action: str) -> None:
        self.act(MessageAction(action))

    async def action_choose(self, step: int) -> None:
        """Go on by one message; within one that is longer than the screen by half a screen."""
        if self._chosen is None:
            nearest = self.by_distance()
            await self._choose(
                len(self.messages) - 1 if self.following or not nearest else self.index_of(nearest[0][0])
            )
            return
        view = self.views.get(self._chosen)
        if view is not None and self.reaches_out(view, step):
            self.scroll_relative(y=step * (self.size.height // 2), animate=False)
        else:
            await self._choose([shown.id for shown in self.messages].index(self._chosen) + step)

    def action_unchoose(self) -> None:
        self._mark(None)
        raise SkipAction  # the key stops an answer, too

    def action_toggle_reasoning(self) -> None:
        """Show or hide what the chosen message, else the last that has reasoning, was thought out with."""
        views = [view for message, view in self.views.items() if view.reasoning and self._chosen in (None, message)]
        if views and (reasoning := views[-1].reasoning):
            reasoning.expanded = not reasoning.expanded

    async def toggle_attachments(self, message: int) -> None:
        """Show what is attached to a message, or hide it again."""
        view = self.views.get(message)
        if view is None or (view.attachments is not None and not view.attachments.expanded):
            await self.choose(message)
        if (attachments := self.views[message].attachments) is not None:
            attachments.expanded = not attachments.expanded

    async def on_click(self, event: Click) -> None:
        if event.widget is not None and event.widget.has_class("news"):
            await self.action_follow()

    def on_message_view_clicked(self, event: MessageView.Clicked) -> None:
        event.stop()
        self._mark(event.message)
        if event.action is not None:
            self.act(event.action)

    async def _choose(self, index: int) -> None:
        """Choose the message at an index, or the first, and bring it to the screen; past the end, none, and follow."""
        if (index := max(0, index)) < len(self.messages):
            view = await self.show_index(index)
            self._mark(view.shown.id)
            self.scroll_to_widget(view, animate=False)
        else:
            await self.choose(None)

    def _mark(self, message: int | None) -> None:
        self._chosen = message
        for view in self.views.values():
            if view.selected != (view.shown.id == message):
                view.selected = not view.selected
