"""Which characters a terminal would obey instead of showing them."""

from typing import Final

OBEYED: Final = frozenset(
    code
    for codes in (range(0x20), range(0x7F, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A))
    for code in codes
    if chr(code) not in "\n\t"
)
"""C0 but newline and tab, DEL, C1; bidi embeddings, overrides and isolates, which would turn round what stands beside them."""
