"""What the actions do that need the screen."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pinyon.app.history.records import Role
from pinyon.app.tui import clipboard
from pinyon.app.tui.actions import Actions
from pinyon.app.tui.editor import written_in_editor
from pinyon.app.tui.search_screen import SearchScreen
from pinyon.app.tui.sidebar import Sidebar
from pinyon.app.tui.themes import DARK, LIGHT
from pinyon.models.store import Store

if TYPE_CHECKING:
    from pinyon.app.tui.chat_screen import ChatScreen


class ScreenActions(Actions):
    """The rest of the table."""

    def __init__(self, screen: "ChatScreen") -> None:
        super().__init__(screen)
        self._screen = screen

    async def sidebar(self, _argument: str) -> None:
        sidebar = self._screen.query_one(Sidebar)
        sidebar.display = not sidebar.display
        (sidebar if sidebar.display else self._screen.prompt).focus()

    async def search(self, words: str) -> None:
        found = await self._screen.app.push_screen_wait(SearchScreen(self._screen.history, words))
        if found is not None:
            await self._dialogue.open(found.conversation.id, found.message)

    async def undo(self, argument: str) -> None:
        self._screen.app.clear_notifications()  # one of them tells of the deletion
        await super().undo(argument)

    async def edit(self, id: str) -> None:  # noqa: A002
        message = self._message(id, "a message of yours", lambda message: message.role is not Role.ASSISTANT)
        if message.role is Role.SYSTEM:
            await self.system("")
        else:
            self._screen.edit(message)

    async def attachments(self, id: str) -> None:  # noqa: A002
        kind = "a message with attachments"
        message = self._message(id, kind, lambda message: any(message.attached_texts))
        await self._screen.transcript.toggle_attachments(message.id)

    async def copy(self, id: str) -> None:  # noqa: A002
        await self.copy_text(self._message(id, "a message with words", lambda message: bool(message.typed)).typed)

    async def copy_text(self, text: str) -> None:
        self._screen.told(await clipboard.copy(text, self._screen.write_to_terminal))

    async def stop(self, _argument: str) -> None:
        if self._screen.editing.message is not None:
            self._screen.give_up_edit()
        elif self._dialogue.is_busy:
            await self._dialogue.stop()
        else:
            self._screen.prompt.focus()

    async def attach(self, path: str) -> None:
        if path:
            await self._screen.chips.attach(path)
        else:
            self._screen.prompt.insert("@")
        self._screen.prompt.focus()

    async def detach(self, _argument: str) -> None:
        self._screen.chips.remove_last()

    async def editor(self, _argument: str) -> None:
        prompt = self._screen.prompt
        prompt.put(await written_in_editor(self._screen.app, prompt.text))

    async def model(self, name: str) -> None:
        if name:
            await super().model(name)
            return
        from pinyon.app.devices import chosen_cores  # noqa: PLC0415  what chooses models is not there at the start
        from pinyon.app.machine_speed import measure_speed  # noqa: PLC0415
        from pinyon.app.tui.model_picker import ModelPicker  # noqa: PLC0415
        from pinyon.app.tui.model_rows import model_rows, pull  # noqa: PLC0415
        from pinyon.app.verdict import Here, here_now, settled_wish  # noqa: PLC0415

        folders, settings, current = self._screen.folders, self._screen.settings, self._dialogue.model
        store = Store(folders.models)

        async def look() -> Here:
            room = await self._screen.backend.room()
            return await asyncio.to_thread(here_now, folders, settings, room)

        picker = ModelPicker(
            lambda: model_rows(store, self._screen.history, folders.sizes),
            look,
            partial(pull, store),
            self._dialogue.load,
            partial(measure_speed, folders, chosen_cores(settings).threads),
            wish=settled_wish(settings, self._dialogue.context, self._dialogue.kv_type),
            current=None if current is None else current.name,
        )
        if await self._screen.app.push_screen_wait(picker) is not None:
            self._dialogue.resume()

    async def messages(self, _argument: str) -> None:
        self._screen.transcript.focus()

    async def reasoning(self, _argument: str) -> None:
        self._screen.transcript.action_toggle_reasoning()

    async def gauges(self, _argument: str) -> None:
        gauges = self._screen.gauges
        gauges.display = not gauges.display

    async def theme(self, _argument: str) -> None:
        app = self._screen.app
        app.theme = LIGHT.name if app.current_theme.dark else DARK.name

    async def palette(self, _argument: str) -> None:
        self._screen.app.action_command_palette()
