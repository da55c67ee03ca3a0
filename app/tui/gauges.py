"""What engine and answer report, at a glance: GAUGES says which figures, Gauges shows them in a grid."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from pinyon.app.tui import amounts
from pinyon.app.tui.figures import Figures, cached, drafted
from pinyon.app.tui.safe_text import safe_text
from pinyon.engine.meters import Meters

GAUGES_HZ: Final = 4
"""How often gauges are worth showing anew."""
_CELL: Final = 39
_LABEL: Final = 9
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure: `read` makes its text of what is known; empty leaves the gauge out."""

    id: str
    label: str
    read: Callable[[Meters | None, Figures], str]


def _of_figures(read: Callable[[Figures], str]) -> Callable[[Meters | None, Figures], str]:
    return lambda _meters, figures: read(figures)


def _of_meters(read: Callable[[Meters], str]) -> Callable[[Meters | None, Figures], str]:
    return lambda meters, _figures: amounts.UNKNOWN if meters is None else read(meters)


def _share(cells: int, of_cells: int) -> str:
    return f"{cells / of_cells:.0%}" if of_cells else amounts.UNKNOWN


def _context(meters: Meters | None, figures: Figures) -> str:
    used = figures.prompt_tokens + figures.completion_tokens
    return f"{used:,} used" if meters is None else f"{used:,} used, {max(meters.cells - used, 0):,} left"


def _queue(meters: Meters) -> str:
    gave_way = f", {meters.service.preempted:,} gave way" if meters.service.preempted else ""
    return f"{meters.running} running, {meters.waiting} waiting{gave_way}"


GAUGES: Final = (
    Gauge("ttft", "TTFT", _of_figures(lambda f: amounts.seconds(f.ttft_s))),
    Gauge(
        "tpot",
        "TPOT",
        _of_figures(lambda f: f"p50 {amounts.seconds(f.tpot_p50_s)}, p95 {amounts.seconds(f.tpot_p95_s)}"),
    ),
    Gauge("prefill", "prompt", _of_figures(lambda f: amounts.rate(f.prompt_tokens_per_s))),
    Gauge("decode", "answer", _of_figures(lambda f: f"{amounts.rate(f.tokens_per_s)} {sparkline(f.speeds)}")),
    Gauge("drafts", "drafts", _of_figures(drafted)),
    Gauge("context", "context", _context),
    Gauge("cache", "cached", _of_figures(cached)),
    Gauge(
        "cells",
        "KV cells",
        _of_meters(lambda m: f"{_share(m.held_cells, m.cells)} in use, {_share(m.idle_cells, m.cells)} kept"),
    ),
    Gauge(
        "kept",
        "KV kept",
        _of_meters(lambda m: f"RAM {amounts.size(m.kv_ram_bytes)}, disk {amounts.size(m.kv_disk_bytes)}"),
    ),
    Gauge("queue", "queue", _of_meters(_queue)),
    Gauge(
        "ram",
        "RAM",
        _of_meters(lambda m: f"{amounts.size(m.rss_bytes)} used, {amounts.size(m.available_bytes)} free"),
    ),
    Gauge(
        "vram",
        "VRAM",
        lambda meters, _figures: ", ".join(
            f"{device.device} {amounts.size(device.used_bytes)} of {amounts.size(device.total_bytes)}"
            for device in (meters.vram if meters else ())
        ),
    ),
)


def sparkline(values: Sequence[float]) -> str:
    """Return one bar for each value, as high as its share of the highest."""
    highest = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in values)


class Gauges(Widget):
    """The gauges of a list in as many columns as fit. What is shown stays until `show` brings something else."""

    DEFAULT_CSS = """
    Gauges { height: auto; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, gauges: Sequence[Gauge] = GAUGES, *, id: str | None = None) -> None:  # noqa: A002  Textual's name
        super().__init__(id=id)
        self._gauges = gauges
        self._shown = self._read(None, Figures())

    def show(self, meters: Meters | None, figures: Figures | None) -> None:
        """Show these; None is not known. Costs nothing where no text has changed."""
        texts = self._read(meters, figures or Figures())
        if texts == self._shown:
            return
        other_gauges = len(texts) != len(self._shown)
        self._shown = texts
        self.refresh(layout=other_gauges)

    def _read(self, meters: Meters | None, figures: Figures) -> tuple[tuple[str, str], ...]:
        texts = ((gauge.label, safe_text(gauge.read(meters, figures))) for gauge in self._gauges)
        return tuple((label, text) for label, text in texts if text)

    def render(self) -> Content:
        width = self.content_size.width
        columns = _columns(width)
        cells = [_cell(label, text, width if columns == 1 else _CELL) for label, text in self._shown]
        rows = [Content("").join(cells[start : start + columns]) for start in range(0, len(cells), columns)]
        return Content("\n").join(rows)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002  Textual's signature
        return -(-len(self._shown) // _columns(width))


def _columns(width: int) -> int:
    return max(1, width // _CELL)


def _cell(label: str, text: str, width: int) -> Content:
    value = Content(text).truncate(max(1, width - _LABEL - 1), ellipsis=True)
    return Content.assemble((label.ljust(_LABEL), "dim"), value).extend_right(
        max(0, width - _LABEL - value.cell_length)
    )
