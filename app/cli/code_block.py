"""The first fenced code block of an answer, for `-x`."""

import re

_OPENING = re.compile(r" {0,3}(`{3,}(?=[^`\n]*$)|~{3,})")


def first_code_block(text: str) -> str | None:
    """Return what the first fence of a text encloses, without the indentation of the fence (CommonMark, section 4.5).

    None where there is no fence, or the first one is not closed: an answer that was cut off is no whole block.
    """
    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if opening := _OPENING.match(line.rstrip("\r\n")):
            break
    else:
        return None
    fence = opening[1]
    closing = re.compile(rf" {{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*$")
    indentation = opening.start(1)
    inside: list[str] = []
    for line in lines:
        if closing.match(line.rstrip("\r\n")):
            return "".join(inside)
        inside.append(line[min(indentation, len(line) - len(line.lstrip(" "))) :])
    return None
