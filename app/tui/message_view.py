"""One message: attachments, reasoning, text, and a foot with its figures and what can be done with it."""

from collections.abc import Iterator

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from pinyon.app.history.records import Role, State
from pinyon.app.tui.attachments_view import AttachmentsView
from pinyon.app.tui.blocks import MarkdownCutter, PlainCutter
from pinyon.app.tui.growing_text import Place
from pinyon.app.tui.reasoning_view import ReasoningView
from pinyon.app.tui.safe_text import one_line, safe_text
from pinyon.app.tui.shown import MessageAction, Shown, actions_of
from pinyon.app.tui.text_view import TextView

_STATES = {
    State.STREAMING: "answering…",
    State.CANCELLED: "stopped",
    State.FAILED: "failed",
    State.INTERRUPTED: "interrupted",
}


class MessageView(Vertical):
    """Shows one message. While its state is STREAMING, text and reasoning may grow."""

    DEFAULT_CSS = """
    MessageView {
        width: 100%;
        max-width: 100;
        height: auto;
        margin-bottom: 1;
        padding: 0 1;
        border-left: blank;
        &.-user {
            background: $boost;
            border-left: wide $primary;
        }
        &.-system {
            color: $text-muted;
        }
        &.-selected {
            border-left: thick $accent;
        }
        & > .attachments {
            color: $text-muted;
        }
    }
    """

    class Clicked(Message):
        """The mouse chose a message, or an action of it."""

        def __init__(self, message: int, action: MessageAction | None = None) -> None:
            super().__init__()
            self.message = message
            self.action = action

    def __init__(self, shown: Shown) -> None:
        super().__init__(classes=f"-{shown.role}")
        self.shown = shown
        self.body = TextView(MarkdownCutter() if shown.role is Role.ASSISTANT else PlainCutter())
        self.body.feed(shown.text)
        self.reasoning: ReasoningView | None = None
        self.attachments: AttachmentsView | None = None
        self._foot = _Foot(shown)
        if shown.attached_text:
            self.attachments = AttachmentsView(shown.attachments, shown.attached_text)
        if shown.reasoning:
            self.reasoning = ReasoningView(
                shown.reasoning,
                shown.reasoning_s,
                shown.reasoning_tokens,
                running=shown.state is State.STREAMING and not shown.text,
            )
        if shown.state is not State.STREAMING:
            self.body.close()

    def compose(self) -> ComposeResult:
        if self.attachments is not None:
            yield self.attachments
        elif self.shown.attachments:
            titles = "\n".join(map(one_line, self.shown.attachments))
            yield Static(Content(titles), classes="attachments")
        if self.reasoning is not None:
            yield self.reasoning
        yield self.body
        yield self._foot

    @property
    def selected(self) -> bool:
        return self.has_class("-selected")

    @selected.setter
    def selected(self, selected: bool) -> None:
        self.set_class(selected, "-selected")
        self._foot.show(self.shown, with_actions=selected)

    @property
    def texts(self) -> Iterator[TextView]:
        """The texts that are on show."""
        yield self.body
        for folded in (self.reasoning, self.attachments):
            if folded is not None and folded.expanded:
                yield folded.content

    def place_at(self, row: int) -> Place | int:
        """Return what stands in a row: a place in the text, or above it the row itself."""
        above = self.body.virtual_region.y
        return self.body.place_at(row - above) if row >= above else row

    def row_of(self, place: Place | int) -> int:
        return place if isinstance(place, int) else self.body.virtual_region.y + self.body.row_of(place)

    def feed(self, text: str, reasoning: str, reasoning_tokens: int) -> None:
        """Add what has come since the last time."""
        if reasoning:
            if self.reasoning is None:
                self.reasoning = ReasoningView("", 0.0, 0, running=True)
                if self.body.parent is not None:  # else it is composed with the rest
                    self.mount(self.reasoning, before=self.body)
            self.reasoning.feed(reasoning, reasoning_tokens)
        if text:
            if self.reasoning is not None:
                self.reasoning.close()
            self.body.feed(text)

    def finish(self, shown: Shown) -> bool:
        """Show the message as it is in the end. False: it is not the one that was streamed, and needs a new view."""
        thought = self.reasoning.content.text if self.reasoning is not None else ""
        if safe_text(shown.text) != self.body.text or safe_text(shown.reasoning) != thought:
            return False
        if self.shown.state is State.STREAMING and shown.state is not State.STREAMING:
            self.body.close()
        if self.reasoning is not None:
            self.reasoning.close(shown.reasoning_s, shown.reasoning_tokens)
        self.shown = shown
        self._foot.show(shown, with_actions=self.selected)
        return True

    def on_click(self) -> None:
        self.post_message(self.Clicked(self.shown.id))


class _Foot(Static):
    """Figures, how it ended, which version it is, and while the message is selected its actions."""

    DEFAULT_CSS = """
    _Foot {
        color: $text-muted;
    }
    """

    def __init__(self, shown: Shown) -> None:
        super().__init__(markup=False)
        self._message = shown.id
        self.show(shown, with_actions=False)

    def show(self, shown: Shown, *, with_actions: bool) -> None:
        content = _foot(shown, with_actions=with_actions)
        self.update(content)
        self.display = bool(content.plain)

    def action_act(self, action: str) -> None:
        self.post_message(MessageView.Clicked(self._message, MessageAction(action)))


def _foot(shown: Shown, *, with_actions: bool) -> Content:
    parts: list[Content] = []
    if shown.error:
        parts.append(Content.styled(safe_text(shown.error), "$text-error"))
    elif shown.state in _STATES:
        parts.append(Content.styled(_STATES[shown.state], "$text-warning"))
    if shown.footer:
        parts.append(Content(safe_text(shown.footer)))
    index, count = shown.siblings
    if count > 1:
        parts.append(Content(f"{index + 1}/{count}"))
    if with_actions:
        parts += [
            Content(action.replace("_", " "))
            .stylize(Style.from_meta({"@click": f"act('{action}')"}))
            .stylize("underline")
            for action in actions_of(shown)
        ]
    return Content("  ").join(parts)
