import asyncio
import threading
from collections.abc import Callable

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import DataTable, ProgressBar, Static

from pinyon.app.errors import ModelSlotError
from pinyon.app.tui.model_picker import ModelPicker
from pinyon.app.tui.model_rows import ModelRow
from pinyon.models.errors import DownloadError

SMALL = ModelRow("small", True, 98_362_432, "Q4_1", 8192, 91.4, note="quick")
ODD = ModelRow("m[/bad]\x1b[2J", True, 1_117_320_768, "Q4_K", None, None, note="[@click=app.quit]x[/] [")
LARGE = ModelRow("large", False, 491_400_064, "Q4_K_M", note="code")


class Machine:
    """Models that load when `may_load` is set, and a download that goes on until it is let go or stopped."""

    def __init__(self, *rows: ModelRow) -> None:
        self.rows = list(rows)
        self.may_load = asyncio.Event()
        self.loaded: list[str] = []
        self.refusal: Exception | None = None
        self.arrived, self.stopped = threading.Event(), threading.Event()

    def pull(self, name: str, on_progress: Callable[[float], None], cancelled: Callable[[], bool]) -> None:
        on_progress(0.5)
        for _ in range(500):
            if self.arrived.wait(0.01):
                break
            if cancelled():
                self.stopped.set()
                raise DownloadError("stopped: it goes on from the last finished part")
        self.rows = [ModelRow(name, True, row.size_bytes) if row.name == name else row for row in self.rows]

    async def load(self, name: str, on_progress: Callable[[float], None]) -> None:
        on_progress(0.25)
        if self.refusal is not None:
            raise self.refusal
        await self.may_load.wait()
        self.loaded.append(name)


class Chat(App[None]):
    def __init__(self, machine: Machine, current: str | None = None) -> None:
        super().__init__()
        self.machine = machine
        self.picker = ModelPicker(lambda: machine.rows, machine.pull, machine.load, current=current)
        self.results: list[str | None] = []

    def on_mount(self) -> None:
        self.push_screen(self.picker, self.results.append)

    @property
    def note(self) -> str:
        return str(self.picker.query_one(Static).render())

    def table(self) -> list[list[str]]:
        table = self.picker.query_one(DataTable)
        return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]

    async def until(self, pilot: Pilot[None], true: Callable[[], bool]) -> None:
        for _ in range(500):
            if true():
                return
            await pilot.pause(0.01)
        raise AssertionError(f"waited in vain; the note says {self.note!r}")


async def test_what_the_table_says() -> None:
    app = Chat(Machine(SMALL, ODD, LARGE), current="small")
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: app.note == "quick")
        assert app.table() == [
            ["small", "in use", "98 MB", "Q4_1", "8,192", "91.4 tok/s"],
            ["m[/bad][2J", "here", "1.1 GB", "Q4_K", "", ""],
            ["large", "to fetch", "491 MB", "Q4_K_M", "", ""],
        ]
        await pilot.press("down")
        await app.until(pilot, lambda: app.note == "[@click=app.quit]x[/] [")


async def test_the_memory_column_comes_with_the_first_verdict() -> None:
    app = Chat(Machine(SMALL, ModelRow("huge", True, 1, memory="too large")))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 2)
        assert [row[-1] for row in app.table()] == ["", "too large"]


async def test_the_current_model_is_under_the_cursor() -> None:
    app = Chat(Machine(SMALL, ODD, ModelRow("other", True, 1)), current="other")
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 3)
        assert app.picker.query_one(DataTable).cursor_row == 2


async def test_enter_loads_and_answers_with_the_name() -> None:
    app = Chat(Machine(SMALL, ODD))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 2)
        await pilot.press("down", "enter")
        await app.until(pilot, lambda: app.note.startswith("loading m[/bad]"))
        await app.until(pilot, lambda: app.picker.query_one(ProgressBar).progress == 0.25)
        assert app.results == []
        await pilot.press("enter")  # a second one while it loads does nothing
        app.machine.may_load.set()
        await app.until(pilot, lambda: app.results == [ODD.name])
        assert app.machine.loaded == [ODD.name]


async def test_what_is_not_here_is_fetched_then_loaded() -> None:
    app = Chat(Machine(LARGE))
    app.machine.may_load.set()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("enter")
        await app.until(pilot, lambda: app.picker.query_one(ProgressBar).progress == 0.5)
        assert app.note == "fetching large, 491 MB"
        app.machine.arrived.set()
        await app.until(pilot, lambda: app.results == ["large"])


async def test_escape_stops_a_fetch_then_leaves() -> None:
    app = Chat(Machine(LARGE))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("enter")
        await app.until(pilot, lambda: app.note.startswith("fetching"))
        await pilot.press("escape")
        await app.until(pilot, lambda: app.note.startswith("stopped"))
        assert (app.results, app.machine.loaded) == ([], [])
        await app.until(pilot, lambda: not app.picker.has_class("-busy"))
        await pilot.press("escape")
        await app.until(pilot, lambda: app.results == [None])


async def test_escape_stops_a_load() -> None:
    app = Chat(Machine(SMALL))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("enter")
        await app.until(pilot, lambda: app.note == "loading small")
        await pilot.press("escape")
        await app.until(pilot, lambda: app.note == "stopped loading small")
        app.machine.may_load.set()
        await pilot.press("enter")  # and it can be tried again
        await app.until(pilot, lambda: app.results == ["small"])


@pytest.mark.parametrize("refusal", [ModelSlotError("[/x] is served"), DownloadError("[/x] is served")])
async def test_a_refusal_is_told_and_another_model_can_be_taken(refusal: Exception) -> None:
    app = Chat(Machine(SMALL))
    app.machine.refusal = refusal
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("enter")
        await app.until(pilot, lambda: app.note == "[/x] is served")
        app.machine.refusal = None
        app.machine.may_load.set()
        await pilot.press("enter")
        await app.until(pilot, lambda: app.results == ["small"])


async def test_the_mouse_takes_and_leaves() -> None:
    app = Chat(Machine(SMALL, ODD))
    app.machine.may_load.set()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 2)
        await pilot.click(DataTable, offset=(2, 2))
        await app.until(pilot, lambda: app.picker.query_one(DataTable).cursor_row == 1)
        await pilot.click("#use")
        await app.until(pilot, lambda: app.results == [ODD.name])


async def test_leaving_the_program_stops_a_fetch() -> None:
    """The interpreter waits for its threads: a download would keep a closed program alive."""
    app = Chat(Machine(LARGE))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("enter")
        await app.until(pilot, lambda: app.note.startswith("fetching"))
        app.exit()
    assert app.machine.stopped.wait(5)


async def test_leaving_the_program_stops_a_load() -> None:
    app = Chat(Machine(SMALL))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("enter")
        await app.until(pilot, lambda: app.note.startswith("loading"))
        app.exit()
    app.machine.may_load.set()
    await asyncio.sleep(0)
    assert app.machine.loaded == []


async def test_folders_that_cannot_be_read_are_told() -> None:
    def unreadable() -> list[ModelRow]:
        raise DownloadError("the folder cannot be read")

    machine = Machine()
    app = Chat(machine)
    app.picker = ModelPicker(unreadable, machine.pull, machine.load)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: app.note == "the folder cannot be read")
        await pilot.click("#leave")
        await app.until(pilot, lambda: app.results == [None])
