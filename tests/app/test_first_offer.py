"""What is offered where nothing could answer, by what is free."""

import msgspec
import pytest

from pinyon.app import first_offer
from pinyon.app.first_offer import offer, suggestions
from pinyon.app.fit import sizes_here
from pinyon.app.verdict import Here, verdict
from pinyon.models import catalog
from pinyon.models.catalog_headers import catalog_header
from pinyon.models.machine.weight_speed import ROWS, WEIGHT_TYPES, Computer, WeightSpeed
from pinyon.models.memory.fit import Budget, Wish
from pinyon.models.speed_prediction import Speed

GIB, MIB = 1 << 30, 1 << 20
COSTS = tuple(1e-11 * rows**0.5 for rows in ROWS)
SPEED = WeightSpeed(
    Computer("b", 2, "c"), ROWS, (1e-6,) * len(ROWS), (0.0,) * len(ROWS), dict.fromkeys(WEIGHT_TYPES, COSTS)
)


def judged(here):
    found = []
    for entry in catalog.CATALOG:
        headers = (catalog_header(entry),)
        found.append(verdict(entry.name, headers, sizes_here(headers), here, Wish()))
    return found


def offered(text):
    """The names that are offered, in order."""
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "]


def test_what_a_large_machine_is_offered():
    assert offer(Here(Budget(16 * GIB))).splitlines()[:9] == [
        "No model is here yet. These fit this machine; each is checked byte for byte:",
        "",
        "  smollm2                  98 MB  small and instant",
        "      small and quick: the one to start with; 8,192 tokens of context",
        "  qwen2.5-coder:0.5b      491 MB  balanced",
        "      code, tools and fill-in-the-middle; 32,768 tokens of context",
        "  qwen2.5-coder:1.5b    1,117 MB  best that fits",
        "      code, tools and fill-in-the-middle; shares its vocabulary with the 0.5b;",
        "      32,768 tokens of context",
    ]


def test_what_cannot_chat_is_not_offered():
    assert offered(offer(Here(Budget(16 * GIB)))) == ["smollm2", "qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b"]


@pytest.mark.parametrize(
    ("budget_bytes", "names"),
    [(GIB, ["smollm2", "qwen2.5-coder:0.5b"]), (500 * MIB, ["smollm2"])],
)
def test_a_small_machine_is_offered_fewer(budget_bytes, names):
    text = offer(Here(Budget(budget_bytes)))
    assert offered(text) == names
    assert "balanced" not in text


def test_where_nothing_fits_it_says_what_is_lacking():
    text = " ".join(offer(Here(Budget(100 * MIB))).split())
    assert "none fits" in text
    assert "smollm2, the smallest that can be fetched, needs" in text
    assert "100 MiB are free for it" in text
    assert "fetches the first" not in text


def test_with_speeds_known_the_quickest_is_the_quickest_not_the_smallest():
    by_name = {each.name: each for each in judged(Here(Budget(16 * GIB)))}

    def at(name, rate):
        return msgspec.structs.replace(by_name[name], speed=Speed(rate, rate, rate))

    found = suggestions([at("smollm2", 10), at("qwen2.5-coder:0.5b", 90), at("qwen2.5-coder:1.5b", 5)])
    assert [(word, each.name) for word, each in found] == [
        ("small and instant", "qwen2.5-coder:0.5b"),
        ("balanced", "smollm2"),
        ("best that fits", "qwen2.5-coder:1.5b"),
    ]


def test_one_that_is_both_quickest_and_best_is_offered_once():
    (only,) = [each for each in judged(Here(Budget(16 * GIB))) if each.name == "smollm2"]
    assert suggestions([only]) == [("small and instant", only)]
    assert suggestions([msgspec.structs.replace(only, fits=False)]) == []


@pytest.mark.parametrize("here", [Here(Budget(16 * GIB), SPEED), Here(Budget(GIB)), Here(Budget(MIB))])
def test_it_stays_within_a_terminal_and_says_how_to_go_on(here):
    text = offer(here)
    assert max(map(len, text.splitlines())) < 80
    for word in ("`pinyon list`", "`pinyon search WORDS`", "`pinyon add FILE`"):
        assert word in text
    assert ("tok/s" in text) == (here.speed is not None)
    assert catalog.find(first_offer.STARTER) is not None
