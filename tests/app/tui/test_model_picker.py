import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import DataTable, ProgressBar, Static

from pinyon.app.errors import MeasuringError, ModelSlotError
from pinyon.app.fit import sizes_here
from pinyon.app.tui import model_picker
from pinyon.app.tui.model_picker import ModelPicker
from pinyon.app.tui.model_rows import ModelRow
from pinyon.app.tui.model_verdict import Judged, judged
from pinyon.app.verdict import Here
from pinyon.models import catalog
from pinyon.models.catalog_headers import catalog_header
from pinyon.models.errors import DownloadError
from pinyon.models.machine.weight_speed import ROWS, WEIGHT_TYPES, Computer, WeightSpeed
from pinyon.models.memory.fit import Budget, Wish
from pinyon.models.memory.kv import KvType

GIB = 1 << 30
ANY = Wish()
COSTS = tuple(1e-11 * rows**0.5 for rows in ROWS)
SPEED = WeightSpeed(
    Computer("b", 2, "c"), ROWS, (1e-6,) * len(ROWS), (0.0,) * len(ROWS), dict.fromkeys(WEIGHT_TYPES, COSTS)
)


def known(name: str, **changes: object) -> ModelRow:
    """A row of a model of the catalogue, with its real header."""
    entry = catalog.find(name)
    assert entry is not None
    headers = (catalog_header(entry),)
    about = {"is_here": True, "note": entry.note, "headers": headers, "sizes": sizes_here(headers), **changes}
    return ModelRow(entry.name, size_bytes=entry.size_bytes, quantization=entry.quantization, **about)


SMALL = ModelRow("small", True, 98_362_432, "Q4_1", 91.4, note="quick")
ODD = ModelRow("m[/bad]\x1b[2J", True, 1_117_320_768, "Q4_K", note="[@click=app.quit]x[/] [")
LARGE = ModelRow("large", False, 491_400_064, "Q4_K_M", note="code")


class Machine:
    """Models that load when `may_load` is set, and a download that goes on until it is let go or stopped."""

    def __init__(self, *rows: ModelRow) -> None:
        self.rows = list(rows)
        self.may_load = asyncio.Event()
        self.loaded: list[str] = []
        self.refusal: Exception | None = None
        self.arrived, self.stopped = threading.Event(), threading.Event()
        self.here = Here(Budget(GIB))
        self.contexts: list[int | None] = []
        self.kv_types: list[KvType | None] = []
        self.may_measure = asyncio.Event()
        self.looks = 0

    async def look(self) -> Here:
        self.looks += 1
        return self.here

    async def measure(self, on_progress: Callable[[float], None]) -> None:
        on_progress(0.75)
        if self.refusal is not None:
            raise self.refusal
        await self.may_measure.wait()
        self.here = Here(self.here.budget, SPEED)

    def pull(self, name: str, on_progress: Callable[[float], None], cancelled: Callable[[], bool]) -> None:
        on_progress(0.5)
        for _ in range(500):
            if self.arrived.wait(0.01):
                break
            if cancelled():
                self.stopped.set()
                raise DownloadError("stopped: it goes on from the last finished part")
        self.rows = [ModelRow(name, True, row.size_bytes) if row.name == name else row for row in self.rows]

    async def load(
        self, name: str, context: int | None, kv_type: KvType | None, on_progress: Callable[[float], None]
    ) -> None:
        on_progress(0.25)
        if self.refusal is not None:
            raise self.refusal
        await self.may_load.wait()
        self.loaded.append(name)
        self.contexts.append(context)
        self.kv_types.append(kv_type)


class Chat(App[None]):
    def __init__(self, machine: Machine, current: str | None = None, wish: Wish = ANY) -> None:
        super().__init__()
        self.machine = machine
        self.picker = ModelPicker(
            lambda: iter(machine.rows),
            machine.look,
            machine.pull,
            machine.load,
            machine.measure,
            wish=wish,
            current=current,
        )
        self.results: list[str | None] = []

    def on_mount(self) -> None:
        self.push_screen(self.picker, self.results.append)

    @property
    def note(self) -> str:
        return str(self.picker.query_one(Static).render())

    @property
    def verdict(self) -> list[str]:
        return str(list(self.picker.query(Static))[1].render()).split("\n")

    @property
    def keys(self) -> str:
        return str(list(self.picker.query(Static))[2].render())

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
        await app.until(pilot, lambda: app.note == "quick" and len(app.table()) == 3)
        assert app.table() == [
            ["small", "in use", "98 MB", "Q4_1", "", "", "91"],
            ["m[/bad][2J", "here", "1.1 GB", "Q4_K", "", "", ""],
            ["large", "fetch", "491 MB", "Q4_K_M", "", "", ""],
        ]
        await pilot.press("down")
        await app.until(pilot, lambda: app.note == "[@click=app.quit]x[/] [")


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
        await app.until(pilot, lambda: app.machine.looks == 2)
        app.machine.refusal = None
        app.machine.may_load.set()
        await pilot.press("enter")
        await app.until(pilot, lambda: app.results == ["small"])


async def test_the_mouse_takes_and_leaves() -> None:
    app = Chat(Machine(SMALL, ODD))
    app.machine.may_load.set()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 2)
        await app.until(pilot, lambda: app.keys != "")
        await pilot.pause()
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
    def unreadable() -> Iterator[ModelRow]:
        raise DownloadError("the folder cannot be read")
        yield

    machine = Machine()
    app = Chat(machine)
    app.picker = ModelPicker(unreadable, machine.look, machine.pull, machine.load, machine.measure)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: app.note == "the folder cannot be read")
        await pilot.click("#leave")
        await app.until(pilot, lambda: app.results == [None])


async def test_rows_are_judged_and_repriced_by_context() -> None:
    app = Chat(Machine(known("smollm2", tokens_per_s=91.4), known("qwen2.5-coder:1.5b"), ODD))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 3 and app.table()[0][4] != "")
        assert [row[4:] for row in app.table()] == [
            ["█▓▒░░░░░", "8,192", "91"],
            ["██████!!", "no fit", ""],
            ["", "", ""],
        ]
        assert app.verdict[2] == "fits with 8,192 tokens of context, KV in f16"
        await pilot.press("right_square_bracket")
        await app.until(pilot, lambda: app.table()[0][5] == "4,096")
        assert app.keys.startswith("[ ] context: 4,096 ")
        await pilot.press("down")
        await app.until(
            pilot, lambda: app.verdict[2].startswith("does not fit: needs 1.3 GiB, 1.0 GiB are free for it")
        )
        await pilot.press("left_square_bracket", "left_square_bracket", "up")
        await app.until(pilot, lambda: app.table()[0][5] == "8,192")
        assert app.keys.startswith("[ ] context: what suits ")


async def test_the_types_of_kv_are_compared() -> None:
    app = Chat(Machine(known("smollm2")))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.verdict) > 2)
        for kind in ("f16", "q8_0", "q4_0"):
            await pilot.press("k")
            await app.until(pilot, lambda kind=kind: f"k KV: {kind} " in app.keys)
            assert app.verdict[2] == f"fits with 8,192 tokens of context, KV in {kind}"
        await pilot.press("k")
        await pilot.pause()
        assert "k KV: what suits" in app.keys


async def test_the_chosen_context_is_loaded_up_to_what_the_model_was_trained_for() -> None:
    app = Chat(Machine(known("smollm2"), known("gemma3:270m")), wish=Wish(16_384))
    app.machine.may_load.set()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.verdict) > 2)
        await pilot.press("right_square_bracket", "enter")  # 32,768
        await app.until(pilot, lambda: app.results == ["smollm2"])
    assert app.machine.contexts == [8_192]


async def test_the_chosen_type_of_kv_is_loaded_and_it_is_said_where_a_model_cannot_have_it() -> None:
    sizes = known("smollm2").sizes
    assert sizes is not None
    odd = replace(sizes, kept=replace(sizes.kept, head_elements=(80,)))
    machine = Machine(known("smollm2"), replace(known("gemma3:270m"), sizes=odd))
    machine.may_load.set()
    app = Chat(machine)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 2 and len(app.verdict) > 2)
        await pilot.press("k", "k", "down")
        await app.until(pilot, lambda: any("q8_0 needs heads of a multiple of 32" in line for line in app.verdict))
        await pilot.press("up", "enter")
        await app.until(pilot, lambda: app.results == ["smollm2"])
    assert machine.kv_types == [KvType.Q8_0]


async def test_what_would_leave_memory_counts_as_free_and_that_is_said() -> None:
    app = Chat(Machine(known("smollm2"), known("qwen2.5-coder:1.5b")), current="smollm2")
    app.machine.here = Here(Budget(2 * GIB), None, Budget(GIB), ("smollm2",))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 2 and app.table()[1][4] != "")
        assert not any("in memory" in line for line in app.verdict), "it is there itself"
        await pilot.press("down")
        line = "not beside what is in memory: smollm2 will leave, once idle"
        await app.until(pilot, lambda: line in app.verdict)
        assert app.table()[1][5] != "no fit"


async def test_speeds_are_measured_on_the_spot() -> None:
    app = Chat(Machine(known("smollm2")))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: app.verdict[-1].startswith("to predict speeds"))
        await pilot.press("m")
        await app.until(pilot, lambda: app.note == "measuring how fast weights are here")
        await app.until(pilot, lambda: app.picker.query_one(ProgressBar).progress == 0.75)
        await pilot.press("escape")
        await app.until(pilot, lambda: app.note == "stopped measuring how fast weights are here")
        app.machine.may_measure.set()
        await pilot.press("m")
        await app.until(pilot, lambda: app.verdict[-1].startswith("predicted "))
        assert app.table()[0][6].startswith("~")
        assert app.results == []


@pytest.mark.parametrize("refusal", [MeasuringError("it [/x] died"), OSError("it [/x] died")])
async def test_what_cannot_be_measured_is_told(refusal: Exception) -> None:
    app = Chat(Machine(known("smollm2")))
    app.machine.refusal = refusal
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("m")
        await app.until(pilot, lambda: app.note == "it [/x] died")
        assert not app.picker.has_class("-busy")


async def test_rows_appear_as_they_are_known_and_it_can_be_left_meanwhile() -> None:
    may_go_on = threading.Event()

    def slow() -> Iterator[ModelRow]:
        yield SMALL
        may_go_on.wait(5)
        yield ODD

    machine = Machine()
    app = Chat(machine)
    app.picker = ModelPicker(slow, machine.look, machine.pull, machine.load, machine.measure)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 1)
        await pilot.press("escape")
        await app.until(pilot, lambda: app.results == [None])
        may_go_on.set()


async def test_what_is_fetched_while_others_are_judged_is_listed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun, may_list = threading.Event(), threading.Event(), threading.Event()

    def slow(row: ModelRow, here: Here | None, wish: Wish) -> Judged:
        if row.name == "large" and here is not None:
            begun.set()
            go_on.wait(5)
        return judged(row, here, wish)

    def rows() -> Iterator[ModelRow]:
        if machine.arrived.is_set():
            may_list.wait(5)
        yield from machine.rows

    monkeypatch.setattr(model_picker, "judged", slow)
    machine = Machine(LARGE, known("smollm2"))
    app = Chat(machine)
    app.picker = ModelPicker(rows, machine.look, machine.pull, machine.load, machine.measure)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, begun.is_set)
        machine.rows = [ModelRow("large", True, 1)]
        machine.arrived.set()
        await pilot.press("enter")
        await app.until(pilot, lambda: app.note == "loading large")
        go_on.set()
        await pilot.pause(0.05)
        may_list.set()
        await app.until(pilot, lambda: [row[:2] for row in app.table()] == [["large", "here"]])
        machine.may_load.set()
        await app.until(pilot, lambda: app.results == ["large"])


async def test_names_of_devices_are_shown_literally() -> None:
    app = Chat(Machine(known("smollm2")))
    app.machine.here = Here(Budget(GIB, (("[b]GPU[/]\x1b[2J\n0", GIB),)))
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.verdict) > 2)
        assert app.verdict[1].startswith("[b]GPU[/][2J 0 ")


async def test_nothing_that_is_needed_is_cut_on_a_small_terminal() -> None:
    rows = [known(name, tokens_per_s=9.5) for name in ("smollm2", "gemma3:270m", "qwen2.5-coder:0.5b")]
    app = Chat(Machine(*rows, known("qwen2.5-coder:1.5b", is_here=False)))
    app.machine.here = Here(Budget(GIB), SPEED)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.until(pilot, lambda: len(app.table()) == 4 and len(app.verdict) > 4)
        table = app.picker.query_one(DataTable)
        assert table.max_scroll_x == 0
        box = app.picker.query_one("Vertical")
        await pilot.press("down", "down", "down")
        await pilot.pause()
        assert box.max_scroll_y == 0
