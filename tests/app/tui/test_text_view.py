from textual.app import App, ComposeResult
from textual.color import Color
from textual.geometry import Region

from pinyon.app.tui.blocks import MarkdownCutter
from pinyon.app.tui.rows import Look, rows_of
from pinyon.app.tui.text_view import TextView


class Screen(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.view = TextView(MarkdownCutter())

    def compose(self) -> ComposeResult:
        yield self.view

    def backgrounds(self) -> list[set[str]]:
        """The colours behind each row."""
        strips = self.view.render_lines(Region(0, 0, *self.view.size))
        return [{segment.style.bgcolor.name for segment in strip if segment.text} for strip in strips]


async def test_code_has_its_background_from_end_to_end_while_it_streams_and_when_it_is_set() -> None:
    app = Screen()
    async with app.run_test(size=(40, 20)) as pilot:
        panel = Color.parse(app.theme_variables["panel"]).rich_color.name
        app.view.feed("Look:\n\n```python\ndef f():\n\n    return 1\n")
        await pilot.pause()
        text, *code = app.backgrounds()
        assert text.isdisjoint({panel})
        assert code == [text, {panel}, {panel}, {panel}]
        app.view.feed("```\n")
        await pilot.pause()
        assert app.backgrounds() == [text, *code]
        look = Look(code_background=panel)
        parts = list(app.view.unset_parts(0))
        app.view.put({part: rows_of(part.block, app.view.text_width, look) for part in parts}, app.view.text_width)
        await pilot.pause()
        assert app.backgrounds() == [text, *code]
