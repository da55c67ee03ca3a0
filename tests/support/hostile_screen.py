"""A transcript in a real terminal, with a text in every place that shows one: `hostile` or `harmless`."""

import sys

from markdown_texts import hostile_text
from textual.app import App, ComposeResult

from pinyon.app.history.records import Role, State
from pinyon.app.tui.shown import Shown
from pinyon.app.tui.transcript import Transcript


class Screen(App[None]):
    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self.texts = texts

    def compose(self) -> ComposeResult:
        yield Transcript()

    async def on_mount(self) -> None:
        self.run_worker(self.show())

    async def show(self) -> None:
        transcript = self.query_one(Transcript)
        for number, text in enumerate(self.texts, 1):
            transcript.begin(Shown(number, Role.ASSISTANT, state=State.STREAMING, attachments=(text,)))
            for start in range(0, len(text), 2):
                transcript.append(text[start : start + 2], text[start : start + 2])
            await transcript.settled()
            transcript.action_toggle_reasoning()
            last = Shown(number, Role.ASSISTANT, text, text, State.FAILED, text, attachments=(text,), error=text)
            transcript.finish(last)
            await transcript.settled()
            self.call_after_refresh(lambda: None)
        self.set_timer(0.3, self.exit)


Screen([hostile_text(seed) if sys.argv[1] == "hostile" else f"harmless {seed}" for seed in range(12)]).run()
