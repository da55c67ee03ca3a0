"""A message of the user's that is being edited: which one, and what the change would cost. Knows no widget."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Final

from pinyon.app.conversing import EditCost
from pinyon.app.history.records import Message
from pinyon.app.tui import reports
from pinyon.app.tui.turns import EXPECTED

COST_PAUSE_S: Final = 0.3
"""How long an edited text must rest before its cost is estimated."""


class Editing:
    """`message` is the one that is edited, None while none is.

    `cost_of` estimates, `run` lets an estimate take its time in the place of the one before, `on_cost` is told of its end.
    """

    def __init__(
        self,
        cost_of: Callable[[Message, str], Awaitable[EditCost | None]],
        run: Callable[[Callable[[], Coroutine[None, None, None]]], None],
        on_cost: Callable[[], None],
    ) -> None:
        self.message: Message | None = None
        self._cost = ""
        self._cost_of = cost_of
        self._run = run
        self._on_cost = on_cost

    @property
    def status(self) -> list[str]:
        """Lines that tell what goes on."""
        if self.message is None:
            return []
        told = "editing: enter sends it as another branch, escape leaves it as it was"
        return [told, self._cost] if self._cost else [told]

    def begin(self, message: Message) -> None:
        self.message, self._cost = message, ""

    def end(self) -> Message | None:
        """Return the message that was edited; none is any more."""
        edited, self.message = self.message, None
        return edited

    def changed(self, text: str) -> None:
        """The text has become another one."""
        if self.message is not None:
            self._run(partial(self._estimate, self.message, text))

    async def _estimate(self, message: Message, text: str) -> None:
        await asyncio.sleep(COST_PAUSE_S)
        with contextlib.suppress(*EXPECTED):
            cost = await self._cost_of(message, text)
            if self.message is message:
                self._cost = "" if cost is None else reports.edit_cost(cost)
                self._on_cost()
