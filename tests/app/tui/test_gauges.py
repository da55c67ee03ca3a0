import pytest
from textual.app import App, ComposeResult

from pinyon.app.tui.figures import Figures
from pinyon.app.tui.gauges import GAUGES, Gauge, Gauges, sparkline
from pinyon.engine.cache_report import CacheReport
from pinyon.engine.draft_report import DraftReport
from pinyon.engine.meters import Meters, Service, Vram

METERS = Meters(
    cells=8192,
    held_cells=819,
    idle_cells=4096,
    running=1,
    waiting=2,
    service=Service(preempted=3),
    kv_ram_bytes=120_000_000,
    kv_disk_bytes=1_200_000_000,
    prefill_tokens_per_s=900.0,
    restore_bytes_per_s=2e9,
    rss_bytes=310_000_000,
    available_bytes=5_100_000_000,
    vram=(),
)
FIGURES = Figures(
    ttft_s=0.41,
    tpot_p50_s=0.024,
    tpot_p95_s=0.031,
    prompt_tokens=530,
    cached_tokens=512,
    prompt_tokens_per_s=912.0,
    completion_tokens=70,
    tokens_per_s=38.2,
    speeds=(10.0, 20.0, 40.0),
    cache=CacheReport(resident=480, disk=32),
    drafts=DraftReport("suffix", 40, 70, 60, 30, {0: 20, 2: 10, 4: 10}),
)


def texts(meters: Meters | None, figures: Figures) -> dict[str, str]:
    return {gauge.id: gauge.read(meters, figures) for gauge in GAUGES}


class Panel(App[None]):
    def __init__(self, gauges: Gauges) -> None:
        super().__init__()
        self.gauges = gauges

    def compose(self) -> ComposeResult:
        yield self.gauges


def lines(gauges: Gauges) -> list[str]:
    return [gauges.render_line(y).text.rstrip() for y in range(gauges.size.height)]


def test_every_figure_of_the_list() -> None:
    assert texts(METERS, FIGURES) == {
        "ttft": "0.41 s",
        "tpot": "p50 24 ms, p95 31 ms",
        "prefill": "912 tok/s",
        "decode": "38.2 tok/s ▃▅█",
        "drafts": "30/60 (suffix, depth 3.0)",
        "context": "600 used, 7,592 left",
        "cache": "512/530 (context 480, disk 32)",
        "cells": "10% in use, 50% kept",
        "kept": "RAM 120 MB, disk 1.2 GB",
        "queue": "1 running, 2 waiting, 3 gave way",
        "ram": "310 MB used, 5.1 GB free",
        "vram": "",
    }


def test_what_is_not_known_is_no_zero() -> None:
    shown = texts(None, Figures())
    assert {shown[name] for name in ("ttft", "cells", "kept", "queue", "ram")} == {"-"}
    assert shown["tpot"] == "p50 -, p95 -"


def test_devices_are_named() -> None:
    from msgspec.structs import replace

    meters = replace(METERS, vram=(Vram("CUDA0", 2_000_000_000, 24_000_000_000),))
    assert texts(meters, FIGURES)["vram"] == "CUDA0 2.0 GB of 24 GB"


@pytest.mark.parametrize(("values", "bars"), [((), ""), ((0.0, 0.0), "▁▁"), ((0.0, 5.0, 10.0), "▁▅█")])
def test_sparkline(values: tuple[float, ...], bars: str) -> None:
    assert sparkline(values) == bars


async def test_a_grid_as_wide_as_the_screen_lets_it() -> None:
    app = Panel(Gauges())
    async with app.run_test(size=(80, 24)) as pilot:
        app.gauges.show(METERS, FIGURES)
        await pilot.pause()
        assert lines(app.gauges)[:2] == [
            "TTFT     0.41 s                        TPOT     p50 24 ms, p95 31 ms",
            "prompt   912 tok/s                     answer   38.2 tok/s ▃▅█",
        ]
        assert len(lines(app.gauges)) == 6
        await pilot.resize_terminal(40, 24)
        await pilot.pause()
        assert lines(app.gauges)[:2] == ["TTFT     0.41 s", "TPOT     p50 24 ms, p95 31 ms"]
        assert len(lines(app.gauges)) == 11


async def test_texts_are_literal_and_harmless() -> None:
    app = Panel(Gauges([Gauge("odd", "odd", lambda _m, _f: "[bold]x[/] \x1b]0;t\x07")]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "[bold]x[/]" in lines(app.gauges)[0]
        assert not {"\x1b", "\x07"} & set(lines(app.gauges)[0])


async def test_only_another_text_is_painted() -> None:
    gauges = Gauges()
    painted = 0

    class Counted(Gauges):
        def refresh(
            self, *regions: object, repaint: bool = True, layout: bool = False, recompose: bool = False
        ) -> "Counted":
            nonlocal painted
            painted += 1
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)  # type: ignore[arg-type]

    gauges = Counted()
    app = Panel(gauges)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        before = painted
        gauges.show(METERS, FIGURES)
        gauges.show(METERS, FIGURES)
        assert painted == before + 1
