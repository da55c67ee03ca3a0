"""Models that tests share."""

import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import platformdirs
import pytest
import pytest_asyncio
from tiny_models import write_tiny_llama

from pinyon.engine.client import EngineClient
from pinyon.models import catalog
from pinyon.models.wheel_source import fetch

# A shell starts what it runs in the background with SIGINT ignored, and so would the programs under test be.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with random weights and a vocabulary of bytes."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def catalogue_model() -> Callable[[str], Path]:
    """Models of the catalogue by name, each fetched once for all test runs of this user."""

    def fetched(name: str) -> Path:
        entry = catalog.find(name)
        assert entry is not None
        return fetch(entry, Path(platformdirs.user_cache_dir("pinyon-tests")), lambda _progress: None)

    return fetched


@pytest.fixture(scope="session")
def smollm2(catalogue_model: Callable[[str], Path]) -> Path:
    """The starter model."""
    return catalogue_model("smollm2")


@pytest_asyncio.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Callable[..., EngineClient]]:
    """Make engine clients that are closed at the end of the test."""
    made: list[EngineClient] = []

    def make(*args: object, **kwargs: object) -> EngineClient:
        client = EngineClient(*args, log_path=tmp_path / f"engine-{len(made)}.log", **kwargs)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()
