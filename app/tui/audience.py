"""Who is told what happens in the chat: the screen, or the lines of `--plain`."""

from typing import Protocol

from pinyon.app.history.records import Message
from pinyon.engine.events import Event
from pinyon.models.errors import ModelNotFoundError


class Audience(Protocol):
    """Who is told what happens. Messages of conversations that are not open are not told."""

    async def opened(self, at: int | None) -> None:
        """Another conversation, or another branch of this one, is open; `at` is the message that was looked for."""

    async def said(self, message: Message) -> None: ...
    def began(self, message: Message) -> None: ...
    def heard(self, event: Event) -> None:
        """Take an event of the answer, also while its conversation is not open."""

    def ended(self, message: Message) -> None: ...
    def changed(self) -> None:
        """Look again at what waits, how far the model is loaded and which conversations there are."""

    def told(self, text: str) -> None:
        """Show a line that came up."""

    def failed(self, error: Exception, text: str = "") -> None:
        """Tell what could not be done, in the error's own words or in these."""

    def broke(self, error: Exception) -> None:
        """A fault in the chat itself: there is no going on."""

    def needs_model(self, error: ModelNotFoundError) -> None:
        """No model is here that could answer; what waits goes on with `resume`."""
