"""The list of conversations: read when something in it has changed, older ones when one scrolls there."""

from textual.app import App, ComposeResult

from pinyon.app.history.errors import HistoryLockedError
from pinyon.app.history.history import History
from pinyon.app.tui.sidebar import PAGE, Sidebar


class Watched(History):
    """Notes how many conversations were asked for, each time."""

    def __init__(self) -> None:
        self.ticks = iter(range(1_000_000))
        super().__init__(None, clock=lambda: float(next(self.ticks)))
        self.asked: list[int] = []
        self.trouble: Exception | None = None

    def conversations(self, *, limit=200, before=None):
        self.asked.append(limit)
        if self.trouble is not None:
            raise self.trouble
        return super().conversations(limit=limit, before=before)


class Screen(App[None]):
    AUTO_FOCUS = None

    def __init__(self, conversations: int) -> None:
        super().__init__()
        self.history = Watched()
        self.ids = [self.history.start(title=f"talk {number}", model="").id for number in range(conversations)]
        self.sidebar = Sidebar(self.history)

    def compose(self) -> ComposeResult:
        yield self.sidebar

    @property
    def titles(self) -> list[str]:
        return [str(option.prompt) for option in self.sidebar.options]

    @property
    def marked(self) -> str | None:
        option = self.sidebar.highlighted_option
        return None if option is None else str(option.prompt)


async def test_it_is_read_again_only_when_something_in_it_has_changed() -> None:
    app = Screen(3)
    async with app.run_test():
        for _ in range(10):
            app.sidebar.look(app.ids[0])
        assert app.history.asked == [PAGE]
        assert (app.titles, app.marked) == (["talk 2", "talk 1", "talk 0"], "talk 0")
        message = app.history.add(app.ids[0], None, "user", "a question")
        app.sidebar.look(app.ids[0])
        app.history.use_leaf(app.ids[0], message.id)
        app.sidebar.look(app.ids[0])
        assert app.history.asked == [PAGE, PAGE]
        assert app.titles == ["talk 0", "talk 2", "talk 1"]
        changes = (
            (lambda: app.history.rename(app.ids[1], "other"), ["talk 0", "talk 2", "other"]),
            (lambda: app.history.delete(app.ids[2]), ["talk 0", "other"]),
            (lambda: app.history.undelete(app.ids[2]), ["talk 0", "talk 2", "other"]),
            (lambda: app.history.purge(app.ids[0]), ["talk 2", "other"]),
            (lambda: app.history.start(title="new", model=""), ["new", "talk 2", "other"]),
        )
        for change, titles in changes:
            change()
            app.sidebar.look(None)
            assert app.titles == titles


async def test_older_ones_come_when_one_scrolls_to_the_end() -> None:
    app = Screen(2 * PAGE + 50)
    async with app.run_test(size=(40, 20)) as pilot:
        app.sidebar.look(None)
        await pilot.pause()
        assert len(app.titles) == PAGE
        app.sidebar.focus()
        for expected in (2 * PAGE, 2 * PAGE + 50, 2 * PAGE + 50):
            await pilot.press("end")
            await pilot.pause()
            assert len(app.titles) == expected
        assert app.titles == [f"talk {number}" for number in reversed(range(2 * PAGE + 50))]
        assert app.history.asked == [PAGE, 2 * PAGE, 3 * PAGE]
        await pilot.press("up")
        place, marked = app.sidebar.scroll_y, app.marked
        assert place > 2 * PAGE
        app.history.start(title="new", model="")
        app.sidebar.look(None)
        await pilot.pause()
        assert len(app.titles) == 2 * PAGE + 51
        assert (app.sidebar.scroll_y, app.marked) == (place, marked)


async def test_who_goes_through_the_list_stays_at_his_conversation() -> None:
    app = Screen(3)
    async with app.run_test() as pilot:
        app.sidebar.look(app.ids[2])
        app.sidebar.focus()
        await pilot.press("down")
        assert app.marked == "talk 1"
        app.history.add(app.ids[2], None, "user", "meanwhile")
        app.history.start(title="new", model="")
        app.sidebar.look(app.ids[2])
        assert app.titles == ["new", "talk 2", "talk 1", "talk 0"]
        assert app.marked == "talk 1"


async def test_where_it_is_shown_again_it_has_what_other_processes_have_added(tmp_path) -> None:
    app = Screen(0)
    with History(tmp_path / "history.db") as history, History(tmp_path / "history.db") as of_another:
        app.sidebar = Sidebar(history)
        history.start(title="mine", model="")
        history.flush()
        async with app.run_test() as pilot:
            app.sidebar.look(None)
            of_another.start(title="from elsewhere", model="")
            of_another.flush()
            app.sidebar.display = False
            await pilot.pause()
            app.sidebar.display = True
            await pilot.pause()
            assert app.titles == ["from elsewhere", "mine"]


async def test_what_cannot_be_read_now_stays_as_it_was() -> None:
    app = Screen(2)
    async with app.run_test():
        app.sidebar.look(None)
        app.history.trouble = HistoryLockedError("another program holds it")
        app.history.start(title="new", model="")
        app.sidebar.look(None)
        assert app.titles == ["talk 1", "talk 0"]
        app.history.trouble = None
        app.history.start(title="newer", model="")
        app.sidebar.look(None)
        assert app.titles == ["newer", "new", "talk 1", "talk 0"]
