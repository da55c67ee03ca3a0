import pytest

from pinyon.app.conversing import EditCost
from pinyon.app.errors import UsageError
from pinyon.app.history.records import Message, Role, State
from pinyon.app.tui import editing as module
from pinyon.app.tui.editing import Editing

EDITED = Message(7, "talk", None, Role.USER, "one", "", State.COMPLETE, 0.0)
COST = EditCost(40, 28, 12, 3.0)


class Desk:
    """Holds the estimates that wait, the last one only."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.told: list[list[str]] = []
        self.cost: EditCost | Exception | None = COST
        self.waiting = None
        self.editing = Editing(self.cost_of, self.run, lambda: self.told.append(self.editing.status))

    async def cost_of(self, message: Message, text: str) -> EditCost | None:
        self.asked.append((message.id, text))
        if isinstance(self.cost, Exception):
            raise self.cost
        return self.cost

    def run(self, estimating) -> None:
        self.waiting = estimating

    async def rest(self) -> None:
        waiting, self.waiting = self.waiting, None
        await waiting()


@pytest.fixture
def desk(monkeypatch):
    monkeypatch.setattr(module, "COST_PAUSE_S", 0)
    return Desk()


async def test_what_is_written_costs_nothing_unless_a_message_is_edited(desk):
    desk.editing.changed("a text")
    assert (desk.waiting, desk.editing.status, desk.editing.end()) == (None, [], None)


async def test_the_cost_of_the_last_text_is_told_until_the_edit_ends(desk):
    desk.editing.begin(EDITED)
    assert len(desk.editing.status) == 1
    desk.editing.changed("un")
    desk.editing.changed("uno")
    await desk.rest()
    assert desk.asked == [(7, "uno")]
    assert desk.told == [desk.editing.status]
    assert "12" in desk.editing.status[1]
    assert desk.editing.end() is EDITED
    assert desk.editing.status == []
    desk.editing.begin(EDITED)
    assert len(desk.editing.status) == 1  # the old figure is not this one's


@pytest.mark.parametrize("cost", [None, UsageError("no model")])
async def test_a_cost_that_is_not_known_is_not_told(desk, cost):
    desk.cost = cost
    desk.editing.begin(EDITED)
    desk.editing.changed("uno")
    await desk.rest()
    assert len(desk.editing.status) == 1


async def test_an_estimate_that_comes_after_the_end_is_nobodys(desk):
    desk.editing.begin(EDITED)
    desk.editing.changed("uno")
    desk.editing.end()
    desk.editing.begin(other := Message(8, "talk", None, Role.USER, "two", "", State.COMPLETE, 0.0))
    await desk.rest()
    assert desk.told == []
    assert len(desk.editing.status) == 1
    assert desk.editing.end() is other
