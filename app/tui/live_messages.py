"""The messages of a conversation, of which only some fifty have widgets: the others get theirs as the screen comes near to them."""

from pinyon.app.tui.message_view import MessageView
from pinyon.app.tui.shown import Shown
from pinyon.app.tui.steady_scroll import SteadyScroll

_LIVE = 50
_MORE = 6  # at once; each costs some 10 ms


class LiveMessages(SteadyScroll):
    """Messages, oldest above. Those that have a view follow one another."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Shown] = []
        self.views: dict[int, MessageView] = {}
        self._first = 0  # the message of the first view
        self._loading = False

    def new_view(self, shown: Shown) -> MessageView:
        """Return a view for a message that comes near to the screen."""
        return MessageView(shown)

    @property
    def has_end(self) -> bool:
        return self._end == len(self.messages)

    @property
    def _end(self) -> int:
        return self._first + len(self.views)

    def index_of(self, view: MessageView) -> int:
        return self._first + list(self.views).index(view.shown.id)

    async def show_start(self) -> None:
        """Give views to the first messages."""
        if self._first:
            await self._show_from(0)

    async def show_end(self) -> None:
        """Give views to the last messages, and to no others."""
        await self._show_from(len(self.messages) - _MORE)

    async def show_index(self, index: int) -> MessageView:
        """Give views to the messages up to this one, or where it is far away to those after it, and return its view."""
        if not self._first - _LIVE <= index < self._end + _LIVE:
            await self._show_from(index)
        while index < self._first:
            await self._load_older()
        while index >= self._end:
            await self._load_newer()
        return self.views[self.messages[index].id]

    def add_last(self, shown: Shown) -> None:
        """Add a message at the end. It gets a view if the one before it has one."""
        near = self.has_end
        self.messages.append(shown)
        if near:
            self.views[shown.id] = self.new_view(shown)
            self.mount(self.views[shown.id])
            if self.following:
                self._drop_first()

    def replace(self, shown: Shown, *, with_view: bool = True) -> None:
        """Put a message in the place of the one with its id, and if it is live a new view in the place of the old one."""
        self.messages = [shown if message.id == shown.id else message for message in self.messages]
        if with_view and (old := self.views.get(shown.id)) is not None:
            self.views[shown.id] = self.new_view(shown)
            self.mount(self.views[shown.id], after=old)
            old.remove()

    def moved(self) -> None:
        self.call_next(self.look_around)

    async def look_around(self) -> None:
        """Give views to the messages that the screen comes near to."""
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

    async def _show_from(self, first: int) -> None:
        self._first = max(0, first)
        await self.remove_children(MessageView)
        shown = self.messages[self._first : self._first + _MORE]
        self.views = {message.id: self.new_view(message) for message in shown}
        await self.mount_all(self.views.values())

    async def _load_older(self) -> None:
        first = max(0, self._first - _MORE)
        older = {shown.id: self.new_view(shown) for shown in self.messages[first : self._first]}
        self._first, self.views = first, {**older, **self.views}
        await self.mount_all(older.values(), after=0)
        for message in list(self.views)[_LIVE:]:
            self.views.pop(message).remove()

    async def _load_newer(self) -> None:
        newer = {shown.id: self.new_view(shown) for shown in self.messages[self._end : self._end + _MORE]}
        self.views |= newer
        await self.mount_all(newer.values())
        self._drop_first()

    def _drop_first(self) -> None:
        for message in list(self.views)[:-_LIVE]:
            self.views.pop(message).remove()
            self._first += 1
