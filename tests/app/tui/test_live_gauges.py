"""Gauges beside a slow engine: it is asked one thing at a time, and the answer's figures do not wait for it."""

import asyncio

from textual.app import App

from pinyon.app.tui.figures import Figures
from pinyon.app.tui.live_gauges import LiveGauges
from pinyon.engine.events import Chunk, Progress


async def test_an_engine_that_does_not_answer_is_asked_once_and_holds_up_nothing() -> None:
    asked, answer = [], asyncio.Event()

    async def read_meters():
        asked.append(1)
        await answer.wait()

    class OneWidget(App[None]):
        def compose(self):
            yield LiveGauges(read_meters)

    async with OneWidget().run_test() as pilot:
        gauges = pilot.app.query_one(LiveGauges)
        shown = []
        gauges.show = lambda _meters, figures: shown.append(figures)
        gauges.take(Progress(0, 7))
        async with asyncio.timeout(5):
            while len(shown) < 4:
                await pilot.pause(0.01)
        assert asked == [1]
        assert shown[-1].prompt_tokens == 7
        answer.set()


async def test_the_next_answer_begins_anew_and_an_old_one_waits_for_the_end() -> None:
    async def read_meters():
        return None

    gauges = LiveGauges(read_meters)
    for total in (7, 9):
        for event in (Progress(0, total), Chunk(0, "a", token_ids=(1, 2))):
            gauges.take(event)
    shown = []
    gauges.show = lambda _meters, figures: shown.append(figures)
    gauges.show_now()
    gauges.rest_on(Figures(prompt_tokens=3), is_busy=True)
    gauges.show_now()
    gauges.rest_on(Figures(prompt_tokens=3), is_busy=False)
    gauges.show_now()
    assert [(each.prompt_tokens, each.completion_tokens) for each in shown] == [(9, 2), (9, 2), (3, 0)]
