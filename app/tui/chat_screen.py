"""The screen of the chat: puts its parts together, and shows what the dialogue tells."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static, TextArea

from pinyon.app.attachments import joined
from pinyon.app.backend import Backend
from pinyon.app.conversing import Choices
from pinyon.app.errors import UsageError
from pinyon.app.history.history import History
from pinyon.app.history.records import Message, Role
from pinyon.app.history.tree import Tree
from pinyon.app.settings import Folders, Settings
from pinyon.app.tui import amounts, commands, reports
from pinyon.app.tui.actions import is_cut
from pinyon.app.tui.chips import Chips
from pinyon.app.tui.dialogs import LineDialog, TextDialog
from pinyon.app.tui.dialogue import Dialogue
from pinyon.app.tui.draft import Draft, Piece, without_mentions
from pinyon.app.tui.dropped import dropped_paths
from pinyon.app.tui.editing import Editing
from pinyon.app.tui.figures import footer
from pinyon.app.tui.live_gauges import LiveGauges
from pinyon.app.tui.path_picker import PathPicker
from pinyon.app.tui.prompt import Prompt
from pinyon.app.tui.safe_text import one_line, safe_text
from pinyon.app.tui.screen_actions import ScreenActions
from pinyon.app.tui.shown import Shown
from pinyon.app.tui.sidebar import Sidebar
from pinyon.app.tui.transcript import Transcript
from pinyon.app.tui.turns import EXPECTED
from pinyon.engine.events import Chunk, Event, Progress
from pinyon.models.errors import ModelNotFoundError

if TYPE_CHECKING:
    from textual.worker import WorkType

MAX_COMPLETIONS: Final = 6
WIDE_CELLS: Final = 100
"""Beyond this width the conversations are shown, unless the user hides them."""


def _bindings() -> list[BindingType]:
    """The table's keys. Letters and escape act where nothing else takes them; the others act everywhere on this screen."""
    return [
        Binding(
            action.key,
            f"do('{action.id}')",
            action.label or action.title,
            show=bool(action.label),
            priority=action.id not in commands.MAY_BE_LETTERS,
            id=action.id,
        )
        for action in commands.ACTIONS
        if action.key and action.where is commands.Where.CHAT
    ]


class ChatScreen(Screen[None]):
    """`history`, `backend` and `folders` are used, never closed here. `conversation` is opened first."""

    BINDINGS: ClassVar[list[BindingType]] = _bindings()
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (81, "-wide")]  # noqa: RUF012  Textual's form
    VERTICAL_BREAKPOINTS = [(0, "-short"), (25, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        history: History,
        backend: Backend,
        folders: Folders,
        settings: Settings,
        *,
        model: str | None,
        context: int | None,
        choices: Choices,
        conversation: str | None,
    ) -> None:
        super().__init__()
        self.history = history
        self.backend = backend
        self.folders = folders
        self.settings = settings
        self.dialogue = Dialogue(history, backend, self, choices, model, context)
        self._actions = ScreenActions(self)
        self._conversation = conversation
        self.editing = Editing(self.dialogue.cost_of, self._estimate, self._show_status)
        self._recalled = 0
        self._laid_aside = Draft("")
        self._was_wide: bool | None = None
        self._prefill: Progress | None = None

    def compose(self) -> ComposeResult:
        picker = PathPicker(Path.cwd(), id="paths")
        with Horizontal(id="body"):
            yield Sidebar(self.history, id="sidebar")
            with Vertical(id="room"), Vertical(id="column"):
                yield Static(id="title")
                yield Transcript()
                yield LiveGauges(self.backend.meters, id="gauges")
                yield Static(id="status")
                yield Chips(urls=self.settings.urls, id="chips")
                yield picker
                yield Prompt(picker, id="prompt")
        yield Footer(show_command_palette=False, compact=True)

    async def on_mount(self) -> None:
        self.prompt.focus()
        self.gauges.display = False
        await self.dialogue.open(self._conversation)
        self.call_after_refresh(self.dialogue.resume)  # the first frame comes before the model

    def on_resize(self, event: events.Resize) -> None:
        if (is_wide := event.size.width > WIDE_CELLS) != self._was_wide:
            self._was_wide = is_wide
            self.query_one(Sidebar).display = is_wide

    # What the dialogue tells

    async def opened(self, at: int | None) -> None:
        path = self.dialogue.path
        tree = self.history.tree(path[0].conversation) if path else None
        await self.transcript.show([self._shown(message, tree) for message in path])
        if at is not None:
            await self.transcript.choose(at)
        answer = reports.last_answered(path)
        figures = None if answer is None else reports.figures_of(answer)
        self.gauges.rest_on(figures, is_busy=self.dialogue.is_busy)
        if self.editing.message is not None and self.editing.message.conversation not in {
            each.conversation for each in path
        }:
            self.give_up_edit()

    async def said(self, message: Message) -> None:
        await self.transcript.add(self._shown(message))

    def began(self, message: Message) -> None:
        self.transcript.begin(self._shown(message))

    def heard(self, event: Event) -> None:
        self.gauges.take(event)
        if self.dialogue.prefill != self._prefill:
            self._prefill = self.dialogue.prefill
            self._show_status()
        if isinstance(event, Chunk) and self.dialogue.shows_answer:
            self.transcript.append(event.text, event.reasoning, reasoning_tokens=len(event.token_ids))

    def ended(self, message: Message) -> None:
        self.transcript.finish(self._shown(message))

    def changed(self) -> None:
        if not self.is_mounted:
            return
        current = self.dialogue.conversation
        self.query_one(Sidebar).look(None if current is None else current.id)
        model = self.dialogue.model
        self.query_one(Chips).count_with(None if model is None else model.count)
        self.query_one("#title", Static).update(Content(one_line(reports.title(self.dialogue))))
        self._show_status()

    def broke(self, error: Exception) -> None:
        def fail() -> None:
            raise error

        self.call_later(fail)  # the application ends with it as with every fault

    def told(self, text: str) -> None:
        self.notify(safe_text(text), markup=False)

    def failed(self, error: Exception, text: str = "") -> None:
        self.notify(safe_text(text or str(error)), severity="error", markup=False)

    def needs_model(self, error: ModelNotFoundError) -> None:
        self.told(str(error))
        self.do("model")

    # What the parts of the screen post

    async def on_prompt_sent(self, event: Prompt.Sent) -> None:
        event.stop()
        try:
            command = commands.slash_command(event.text)
        except KeyError as error:
            self.failed(
                error, f"there is no command {error.args[0]!r}; /help lists them. A message may not begin with /"
            )
            return
        if command is not None:
            self.prompt.take()
            self.do(command[0].id, command[1])
        elif not self._draft.is_empty:
            try:
                await self._attach_mentioned()
            except UsageError as error:
                self.failed(error)
            else:
                await self._send()

    async def on_prompt_pasted(self, event: Prompt.Pasted) -> None:
        event.stop()
        paths = dropped_paths(event.text)
        for path in paths:
            self.do("attach", str(path))
        if not paths:
            await self.chips.paste(event.text)

    def on_prompt_recall(self, event: Prompt.Recall) -> None:
        event.stop()
        is_empty = self._draft.is_empty
        if event.steps > 0 and is_empty and (draft := self.dialogue.take_back()) is not None:
            self._put_draft(draft)
            return
        said = [message for message in self.dialogue.path if message.role is Role.USER]
        place = self._recalled + event.steps
        if 0 <= place <= len(said) and (self._recalled or is_empty):
            self._recalled = place
            self._put_draft(Draft.of(said[-place]) if place else Draft(""))

    def on_prompt_attach(self, event: Prompt.Attach) -> None:
        event.stop()
        self.do("attach", event.path)

    def on_path_picker_picked(self, event: PathPicker.Picked) -> None:
        event.stop()
        self.prompt.pick(event.choice)

    @on(TextArea.Changed)
    @on(Chips.Changed)
    def _draft_changed(self) -> None:
        if self._draft.is_empty:
            self._recalled = 0
        self.editing.changed(self._draft.text)
        self._show_status()

    def on_sidebar_chosen(self, event: Sidebar.Chosen) -> None:
        event.stop()
        self.start(self.dialogue.open(event.conversation))
        if self.has_class("-narrow"):  # it covers the text there
            self.query_one(Sidebar).display = False
        self.prompt.focus()

    def on_sidebar_unwanted(self, event: Sidebar.Unwanted) -> None:
        event.stop()
        self.start(self._actions.delete_conversation(event.conversation))

    def on_transcript_action(self, event: Transcript.Action) -> None:
        event.stop()
        self.do(event.action, str(event.message))

    def action_do(self, action: str) -> None:
        self.do(action)

    # What the actions use

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def chips(self) -> Chips:
        return self.query_one(Chips)

    @property
    def gauges(self) -> LiveGauges:
        return self.query_one(LiveGauges)

    @property
    def selected(self) -> int | None:
        """The message that the user has gone to."""
        return self.transcript.selected

    def write_to_terminal(self, sequence: str) -> None:
        """Write what is meant for the terminal itself."""
        if (driver := self.app._driver) is not None:  # noqa: SLF001  Textual has no other way to it
            driver.write(sequence)

    def do(self, action: str, argument: str = "") -> None:
        """Begin an action of the table."""
        self.start(self._actions.do(action, argument))

    def start(self, doing: Coroutine[None, None, None]) -> None:
        """Begin something that may take a while; what it cannot do is told."""
        self.run_worker(self._guarded(doing), group="doing")

    async def show(self, title: str, text: str) -> None:
        """Show a text until the user closes it, or has it copied."""
        if await self.app.push_screen_wait(TextDialog(title, text)):
            await self._actions.copy_text(text)

    async def ask(self, question: str, value: str) -> str:
        """Return a line; empty where the user gives none."""
        return (await self.app.push_screen_wait(LineDialog(question, value)) or "").strip()

    def put(self, text: str) -> None:
        """Put a text into the prompt."""
        self.prompt.put(text)

    def leave(self) -> None:
        """End the chat."""
        self.app.exit()

    def edit(self, message: Message) -> None:
        """Have a message of the user's edited in the prompt; sending it makes a branch. What stands there comes back at the end."""
        if self.editing.message is None:
            self._laid_aside = self._draft
        self.editing.begin(message)
        self._put_draft(Draft.of(message))
        self.prompt.focus()

    def give_up_edit(self) -> None:
        """Leave everything as it stands."""
        if self.editing.end() is not None:
            self._put_draft(self._laid_aside)

    async def _guarded(self, doing: Coroutine[None, None, None]) -> None:
        try:
            await doing
        except EXPECTED as error:
            self.failed(error)

    @property
    def _draft(self) -> Draft:
        """What would be sent now."""
        return Draft(self.prompt.text, self.chips.pieces)

    def _put_draft(self, draft: Draft) -> None:
        self.prompt.put(draft.typed)
        self.chips.put(draft.pieces)

    def _take_draft(self) -> Draft:
        """Empty prompt and chips; return what was in them."""
        draft = self._draft
        self.prompt.take()
        self.chips.put(())
        return draft

    async def _attach_mentioned(self) -> None:
        """Attach what is named behind an @ and was not picked. Raises UsageError, and then nothing is."""
        rest, paths = without_mentions(self.prompt.text)
        pieces = [await asyncio.to_thread(Piece.of_source, path, urls=False) for path in paths]
        if pieces:
            self._put_draft(Draft(rest, (*self.chips.pieces, *pieces)))

    async def _send(self) -> None:
        draft = self._take_draft()
        await self.transcript.choose(None)
        if (edited := self.editing.end()) is None:
            self.dialogue.say(draft)
        else:
            self.dialogue.edit(edited, draft)
            self._put_draft(self._laid_aside)

    def _estimate(self, estimating: Callable[[], Coroutine[None, None, None]]) -> None:
        work: WorkType[None] = (
            estimating  # not its coroutine: one that is cancelled before it begins would never be awaited
        )
        self.run_worker(work, group="estimating", exclusive=True)

    def _shown(self, message: Message, tree: Tree | None = None) -> Shown:
        siblings = (tree or self.history.tree(message.conversation)).siblings(message.id)
        figures, answered = reports.figures_of(message), message.answered
        cut = reports.cut_off(message, commands.keymap(self.settings.keys)["go_on"].split(",")[0])
        return Shown(
            message.id,
            message.role,
            message.typed,
            message.reasoning,
            message.state,
            " · ".join(filter(None, (cut, "" if figures is None else footer(figures)))),
            (siblings.index(message.id), len(siblings)),
            tuple(f"{each.name} {amounts.cost(each.tokens or None, each.size_bytes)}" for each in message.attached),
            message.error,
            reasoning_s=0.0 if answered is None else answered.reasoning_s,
            reasoning_tokens=0 if answered is None else answered.usage.reasoning_tokens,
            is_cut=is_cut(message),
            attached_text=joined(message.attached_texts),
        )

    def _show_status(self) -> None:
        lines = [
            f"/{action.slash} {action.argument}  {action.title}"
            for action in commands.completions(self.prompt.text)[:MAX_COMPLETIONS]
        ]
        lines += self.editing.status
        lines += reports.status(self.dialogue)
        status = self.query_one("#status", Static)
        status.display = bool(lines)
        status.update(Content("\n".join(map(one_line, lines))))
