"""Names that would become files outside of their folder, or that some system cannot have, are refused on every system."""

import pytest

from pinyon.models.errors import DownloadError
from pinyon.models.hub.safe_names import checked_parts

HOSTILE = [
    "../x.gguf", "a/../../x.gguf", "..\\x.gguf", "a\\..\\..\\x.gguf", "C:\\x.gguf", "C:x.gguf", "\\\\host\\x.gguf", "//host/x.gguf",
    "/etc/x.gguf", "x\0.gguf", "n" * 300, "é" * 200, "con", "CON.gguf", "a/nul/x.gguf", "Aux .gguf", "com1.gguf", "lpt¹.gguf",
    "x.gguf.", "x.gguf ", "a./x.gguf", "", ".", "a//x.gguf", "a/", "x.gguf:stream", "a\nb.gguf", "a\u202eb.gguf", "\ud800.gguf",
    "x?.gguf", "x*.gguf", "<x>.gguf", 'x".gguf', "x|y.gguf",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused(name):
    with pytest.raises(DownloadError, match="which is refused") as refusal:
        checked_parts(name)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("model.Q4_K_M.gguf", ("model.Q4_K_M.gguf",)),
        ("Q4_K_M/m-00001-of-00002.gguf", ("Q4_K_M", "m-00001-of-00002.gguf")),
        ("a b/ünïcode (1).gguf", ("a b", "ünïcode (1).gguf")),
        ("console/com10.gguf", ("console", "com10.gguf")),
        (".hidden/x..gguf", (".hidden", "x..gguf")),
    ],
)
def test_other_names_are_taken_apart(name, parts):
    assert checked_parts(name) == parts
