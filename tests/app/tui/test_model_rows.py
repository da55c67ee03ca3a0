from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import CONTEXT, write_tiny_llama

from pinyon.app import known_sizes
from pinyon.app.ask import SamplingChoice
from pinyon.app.history.errors import HistoryLockedError
from pinyon.app.history.history import History
from pinyon.app.history.records import Answered, Role, State
from pinyon.app.tui import model_rows as subject
from pinyon.app.tui.model_rows import ModelRow, model_rows, pull
from pinyon.app.tui.model_verdict import cells, judged, verdict_lines
from pinyon.app.verdict import Here
from pinyon.engine.events import FinishReason, Timings, Usage
from pinyon.models import catalog
from pinyon.models.catalog import CatalogEntry
from pinyon.models.errors import DownloadError, ModelNotFoundError
from pinyon.models.memory.fit import Budget, Wish
from pinyon.models.store import Store
from pinyon.models.wheel_source import Progress


@pytest.fixture
def history() -> Iterator[History]:
    with History.in_memory() as history:
        yield history


def answer(history: History, model: str, tokens_per_s: float) -> None:
    """Let the history have an answer of this model, of 101 tokens: the first one's time is the prefill's."""
    conversation = history.start(title="", model=model)
    message = history.add(conversation.id, None, Role.ASSISTANT, "", state=State.STREAMING)
    timings = Timings(0.0, 1.0, 100 / tokens_per_s)
    answered = Answered(model, "", SamplingChoice(), FinishReason.STOP, Usage(10, 101), timings)
    history.finish(message.id, State.COMPLETE, answered)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def rows_of(store: Store, history: History) -> Iterator[ModelRow]:
    return model_rows(store, history, store.models_dir.parent / "sizes")


def test_with_nothing_here_the_catalogue_smallest_first(store: Store, history: History) -> None:
    rows = list(rows_of(store, history))
    assert [row.name for row in rows] == ["smollm2", "gemma3:270m", "qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b"]
    assert rows[0] == ModelRow(
        "smollm2",
        is_here=False,
        size_bytes=98_362_432,
        quantization="Q4_1",
        note="SmolLM2 135M Instruct, Apache-2.0: small and quick: the one to start with",
    )


def test_what_is_here_comes_first_with_its_measured_speed(store: Store, history: History, tmp_path: Path) -> None:
    file = write_tiny_llama(tmp_path / "zoo.gguf")
    store.add(file)
    for speed in (20.0, 40.0, 1000.0):
        answer(history, "zoo", speed)
    answer(history, "smollm2", 80.0)
    rows = list(rows_of(store, history))
    assert rows[0] == ModelRow(
        "zoo",
        is_here=True,
        size_bytes=file.stat().st_size,
        quantization="F32",
        tokens_per_s=40.0,
        note="tiny",
    )
    assert rows[0].sizes is not None
    assert rows[0].sizes.trained_context == CONTEXT
    assert (rows[1].name, rows[1].tokens_per_s) == ("smollm2", 80.0)


def test_a_header_is_read_once_and_the_verdict_stays_the_same(
    store: Store, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(write_tiny_llama(tmp_path / "zoo.gguf"))
    store.add(write_tiny_llama(tmp_path / "base.gguf", template=None))
    here = Here(Budget(1 << 30))

    def shown() -> list[tuple[object, ...]]:
        found = [judged(row, here, Wish()) for row in rows_of(store, history) if row.is_here]
        return [(each.row, cells(each, is_current=False), verdict_lines(each)) for each in found]

    read = shown()
    assert [len(lines) > 2 for _row, _cells, lines in read] == [True, True]
    monkeypatch.setattr(known_sizes, "headers_of", lambda _path: pytest.fail("the header is read again"))
    assert shown() == read
    write_tiny_llama(tmp_path / "zoo.gguf", metadata={"llama.context_length": 128})
    with pytest.raises(pytest.fail.Exception):
        shown()


def test_a_history_that_cannot_be_read_costs_only_the_speeds(
    store: Store, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> list[Answered]:
        raise HistoryLockedError("locked")

    monkeypatch.setattr(history, "answers", unreadable)
    store.add(write_tiny_llama(tmp_path / "zoo.gguf"))
    assert [(row.name, row.tokens_per_s) for row in rows_of(store, history)][:2] == [
        ("zoo", None),
        ("smollm2", None),
    ]


def test_what_is_wrong_with_a_model_is_its_note(store: Store, history: History, tmp_path: Path) -> None:
    store.add(write_tiny_llama(tmp_path / "base.gguf", template=None))
    store.add(write_tiny_llama(tmp_path / "gone.gguf")).path.unlink()
    (store.models_dir / "smollm2.json").write_text("{")
    notes = {row.name: row.note for row in rows_of(store, history) if row.is_here}
    assert "cannot chat" in notes["base"]
    assert str(tmp_path / "gone.gguf") in notes["gone"]
    assert "is damaged" in notes["smollm2"]
    assert [row.name for row in rows_of(store, history)].count("smollm2") == 1


def test_a_pulled_model_is_here_with_the_catalogues_words(
    store: Store, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(entry: CatalogEntry, folder: Path, progress: object, cancelled: object) -> Path:
        folder.mkdir()
        progress(Progress(25, 100, 1, 4))
        assert not cancelled()
        return write_tiny_llama(folder / entry.file_name)

    monkeypatch.setattr(subject, "fetch", fetch)
    fractions: list[float] = []
    pull(store, "SmolLM2:latest", fractions.append, lambda: False)
    row = next(rows_of(store, history))
    entry = catalog.find("smollm2")
    assert entry is not None
    assert (row.name, row.is_here, row.quantization, row.note) == ("smollm2", True, "Q4_1", entry.note)
    assert fractions == [0.25]


def test_a_pull_that_fails_records_nothing(store: Store, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_arguments: object) -> Path:
        raise DownloadError("stopped")

    monkeypatch.setattr(subject, "fetch", fetch)
    with pytest.raises(DownloadError, match="stopped"):
        pull(store, "smollm2", lambda _fraction: None, lambda: True)
    with pytest.raises(ModelNotFoundError, match="no model 'gpt'"):
        pull(store, "gpt", lambda _fraction: None, lambda: True)
    assert not any(row.is_here for row in rows_of(store, history))
