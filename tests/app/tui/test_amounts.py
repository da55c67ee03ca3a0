import pytest

from pinyon.app.tui import amounts


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (98_362_432, "98 MB"),
        (1_117_320_768, "1.1 GB"),
        (3 * 10**12, "3,000 GB"),
    ],
)
def test_size(number: int, text: str) -> None:
    assert amounts.size(number) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [(None, "-"), (0.0, "0 ms"), (0.0244, "24 ms"), (0.41, "0.41 s"), (9.999, "10.00 s"), (1234.0, "1,234 s")],
)
def test_seconds(duration: float | None, text: str) -> None:
    assert amounts.seconds(duration) == text


@pytest.mark.parametrize(("speed", "text"), [(None, "- tok/s"), (38.25, "38.2 tok/s"), (1912.4, "1,912 tok/s")])
def test_rate(speed: float | None, text: str) -> None:
    assert amounts.rate(speed) == text


@pytest.mark.parametrize(("tokens", "text"), [(None, "12 kB"), (0, "0 tokens"), (1, "1 token"), (1240, "1,240 tokens")])
def test_cost(tokens: int | None, text: str) -> None:
    assert amounts.cost(tokens, 12_000) == text
