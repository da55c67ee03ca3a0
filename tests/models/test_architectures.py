"""The list of architectures is that of the llama.cpp that is installed."""

import gguf
import pytest

from pinyon.engine.errors import ModelLoadError
from pinyon.engine.native import Model, NativeLog
from pinyon.models.architectures import KNOWN_ARCHITECTURES
from pinyon.models.gguf_reader import ValueType

from .gguf_files import Gguf


def is_known_to_llama_cpp(path, architecture):
    """Going by what it says to a file of that architecture with nothing but a name."""
    named = ("general.architecture", ValueType.STRING, architecture)
    path.write_bytes(Gguf((named,), ()).encode())
    with path.with_suffix(".log").open("w") as log, pytest.raises(ModelLoadError) as refusal:
        Model(path, NativeLog(log), lambda _fraction: True)
    return "unknown model architecture" not in str(refusal.value)


@pytest.mark.model
def test_the_list_is_what_llama_cpp_knows(tmp_path):
    candidates = KNOWN_ARCHITECTURES | {*gguf.MODEL_ARCH_NAMES.values(), "foo"}
    known = {name for name in sorted(candidates) if is_known_to_llama_cpp(tmp_path / "bare.gguf", name)}
    assert known == KNOWN_ARCHITECTURES
