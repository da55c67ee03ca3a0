"""What a template sandbox and its child say to each other: one line of ASCII JSON each.

JSON in ASCII carries any text that Python can hold, lone surrogates included.
"""

from typing import Final, Literal

import msgspec

READY: Final = b"ready\n"
"""The child's first line, once it has imported and given up all that it will."""
OUTPUT_CAP_BYTES: Final = 4 << 20


class RenderRequest(msgspec.Struct, frozen=True):
    """A template's source and the variables it sees, which must be plain JSON values."""

    source: str
    variables: dict[str, object]


class Reply(msgspec.Struct, frozen=True):
    """`text` is the rendered text, or the reason why there is none."""

    kind: Literal["rendered", "refused", "broken", "expensive"]
    text: str
