"""What this process takes."""

import psutil
import pytest

from pinyon.engine.memory_use import resident_bytes


def test_this_process_takes_some():
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
