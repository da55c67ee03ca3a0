"""What the tests of the chat share."""

import pytest
from fake_talk import talks


@pytest.fixture
async def make_talk():
    async with talks() as make:
        yield make
