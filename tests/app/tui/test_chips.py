import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import App, ComposeResult

from pinyon.app.attachments import Attachment, fenced
from pinyon.app.errors import UsageError
from pinyon.app.tui.chips import LARGE_CHARS, LARGE_LINES, Chip, Chips, is_large
from pinyon.app.tui.draft import Piece
from pinyon.engine.errors import EngineCrashedError


async def letters(text: str) -> int:
    return len(text)


class Prompt(App[None]):
    def __init__(self, chips: Chips) -> None:
        super().__init__()
        self.chips = chips

    def compose(self) -> ComposeResult:
        yield self.chips

    def labels(self) -> list[str]:
        return [str(chip.render()) for chip in self.query(Chip)]


def piece(name: str, text: str = "text") -> Piece:
    return Piece(name, fenced(Attachment(name, text, len(text))), len(text))


@pytest.mark.parametrize(
    ("text", "large"),
    [
        ("x" * LARGE_CHARS, False),
        ("x" * (LARGE_CHARS + 1), True),
        ("\n" * LARGE_LINES, False),
        ("x\r" * (LARGE_LINES + 1), True),
    ],
)
def test_which_pastes_become_chips(text: str, large: bool) -> None:
    assert is_large(text) is large


async def test_each_costs_what_its_fenced_text_costs() -> None:
    app = Prompt(Chips(letters))
    async with app.run_test(size=(80, 24)) as pilot:
        assert app.chips.size.height == 0
        app.chips.add(piece("a.py", "print()"))
        await app.chips.paste("x\n" * 500)
        await app.workers.wait_for_complete()
        await pilot.pause()
        first, second = (len(piece.text) for piece in app.chips.pieces)
        assert app.chips.pieces[0].text == "a.py\n```python\nprint()\n```"
        assert app.labels() == [f"a.py {first} tokens ✕", f"pasted, 500 lines {second:,} tokens ✕"]
        assert app.chips.tokens == first + second
        assert [piece.tokens for piece in app.chips.pieces] == [first, second]
        assert str(app.chips._sum.render()) == f"{first + second:,} tokens together"
        assert app.chips.size.height == 1
        app.chips.put(())
        await pilot.pause()
        assert (app.chips.pieces, app.labels(), app.chips.tokens) == ((), [], 0)


async def test_without_a_model_the_size_stands_until_there_is_one() -> None:
    async def crashed(_text: str) -> int:
        raise EngineCrashedError("gone")

    app = Prompt(Chips())
    async with app.run_test(size=(80, 24)) as pilot:
        app.chips.add(piece("a.txt", "x" * 1200))
        await pilot.pause()
        assert (app.labels(), app.chips.tokens) == (["a.txt 1.2 kB ✕"], None)
        app.chips.count_with(crashed)
        await app.workers.wait_for_complete()
        assert app.chips.tokens is None
        app.chips.count_with(letters)
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.labels() == [f"a.txt {app.chips.tokens:,} tokens ✕"]


async def test_the_same_count_again_counts_nothing_again() -> None:
    class Model:
        counted = 0

        async def count(self, text: str) -> int:
            self.counted += 1
            return len(text)

    model = Model()
    app = Prompt(Chips(model.count))
    async with app.run_test(size=(80, 24)):
        app.chips.add(piece("a.txt"))
        await app.workers.wait_for_complete()
        app.chips.count_with(model.count)
        await app.workers.wait_for_complete()
        assert model.counted == 1


async def test_a_count_that_comes_too_late_counts_no_more() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def slow(_text: str) -> int:
        return await answer

    app = Prompt(Chips(slow))
    async with app.run_test(size=(80, 24)):
        app.chips.add(piece("a.txt"))
        app.chips.count_with(None)
        answer.set_result(99)
        await app.workers.wait_for_complete()
        assert app.chips.tokens is None


async def test_removed_by_key_or_click() -> None:
    app = Prompt(Chips(letters))
    async with app.run_test(size=(80, 24)) as pilot:
        for name in ("a.txt", "b.txt", "c.txt"):
            app.chips.add(piece(name))
        await app.workers.wait_for_complete()
        await pilot.pause()
        first, second, _ = app.query(Chip)
        first.focus()
        await pilot.press("delete")
        await pilot.pause()
        assert [piece.label for piece in app.chips.pieces] == ["b.txt", "c.txt"]
        await pilot.click(second, offset=(1, 0))
        assert len(app.chips.pieces) == 2
        await pilot.click(second, offset=(second.outer_size.width - 2, 0))
        await pilot.pause()
        assert [piece.label for piece in app.chips.pieces] == ["c.txt"]


async def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A")
    (tmp_path / "b.bin").write_bytes(b"\0")
    app = Prompt(Chips())
    async with app.run_test(size=(120, 24)) as pilot:
        await app.chips.attach(str(tmp_path / "a.md"))
        await app.chips.attach(str(tmp_path))
        await pilot.pause()
        assert app.chips.pieces[0] == piece(str(tmp_path / "a.md"), "# A")
        assert app.chips.pieces[1].label == f"{tmp_path}, 1 file, 1 left out"
        with pytest.raises(UsageError, match="is not text"):
            await app.chips.attach(str(tmp_path / "b.bin"))
        with pytest.raises(UsageError, match="network"):
            await app.chips.attach("http://example.invalid/x")
        assert len(app.chips.pieces) == 2


async def test_names_are_shown_literally() -> None:
    app = Prompt(Chips())
    async with app.run_test(size=(120, 24)) as pilot:
        app.chips.add(Piece("m[/bad].txt\x1b[2J\n[@click=app.quit]x[/]", "", 0, left_out=("[/x] (\x9b)",)))
        await pilot.pause()
        label = app.labels()[0]
        assert label.startswith("m[/bad].txt")
        assert "[@click=app.quit]x[/]" in label
        assert not {"\x1b", "\n", "\x9b"} & set(label + str(app.query_one(Chip).tooltip))


async def test_what_is_put_stands_in_the_place_of_what_was_there_and_is_counted_anew() -> None:
    app = Prompt(Chips())
    async with app.run_test(size=(80, 24)) as pilot:
        app.chips.add(piece("a.txt"))
        app.chips.put([replace(piece("b.txt"), tokens=7), piece("c.txt")])
        await pilot.pause()
        assert app.labels() == ["b.txt 7 tokens ✕", "c.txt 4 B ✕"]
        app.chips.count_with(letters)
        await app.workers.wait_for_complete()
        await pilot.pause()
        tokens = len(piece("b.txt").text)
        assert app.labels() == [f"b.txt {tokens} tokens ✕", f"c.txt {tokens} tokens ✕"]


async def test_coming_and_going_is_told() -> None:
    class Listening(Prompt):
        changes = 0

        def on_chips_changed(self) -> None:
            self.changes += 1

    app = Listening(Chips())
    async with app.run_test(size=(80, 24)) as pilot:
        app.chips.add(piece("a.txt"))
        await pilot.pause()
        assert app.changes == 1
        app.query_one(Chip).focus()
        await pilot.press("delete")
        await pilot.pause()
        assert (app.changes, app.chips.pieces) == (2, ())
