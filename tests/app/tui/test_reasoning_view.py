"""Reasoning: one live line, and the thoughts when asked for."""

from textual.app import App, ComposeResult

from pinyon.app.tui.reasoning_view import ReasoningView


class Screen(App[None]):
    def __init__(self, view: ReasoningView) -> None:
        super().__init__()
        self.view = view

    def compose(self) -> ComposeResult:
        yield self.view

    @property
    def rows(self) -> list[str]:
        return [
            row
            for strip in self.screen._compositor.render_strips()
            if (row := "".join(segment.text for segment in strip).strip())
        ]


async def test_it_counts_while_the_model_thinks_and_opens_meanwhile() -> None:
    now = [100.0]
    app = Screen(ReasoningView("", 0.0, 0, running=True, clock=lambda: now[0]))
    async with app.run_test(size=(60, 20)) as pilot:
        app.view.feed("First", 339)
        now[0] = 112.0
        app.view.feed(" thought.\n", 1)
        await pilot.pause()
        assert app.rows == ["▸ thinking 12 s, 340 tokens"]
        await pilot.click(app.view)
        await pilot.pause()
        assert app.rows == ["▾ thinking 12 s, 340 tokens", "│ First thought."]
        app.view.feed("Second.", 2)
        await pilot.pause()
        assert app.rows[-1] == "│ Second."
        now[0] = 114.0
        app.view.close()
        now[0] = 200.0
        await pilot.pause()
        assert app.rows[0] == "▾ thought 14 s, 342 tokens"
        app.view.close(13.6, 350)
        await pilot.pause()
        assert app.rows[0] == "▾ thought 14 s, 350 tokens"


async def test_what_was_thought_before_is_not_counted_on() -> None:
    now = [100.0]
    app = Screen(ReasoningView("a thought", 12.2, 340, running=False, clock=lambda: now[0]))
    async with app.run_test(size=(60, 20)) as pilot:
        now[0] = 200.0
        await pilot.click(app.view)
        await pilot.pause()
        assert app.rows == ["▾ thought 12 s, 340 tokens", "│ a thought"]


async def test_without_figures_it_tells_none() -> None:
    app = Screen(ReasoningView("a thought", 0.0, 0, running=False))
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        assert app.rows == ["▸ thought"]
