"""The first fenced code block, as CommonMark has it."""

import pytest

from pinyon.app.cli.code_block import first_code_block


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no code", None),
        ("", None),
        ("Here:\n```python\nx = 1\n```\nand\n```\ny\n```\n", "x = 1\n"),
        ("~~~\na\n```\nb\n~~~", "a\n```\nb\n"),
        ("````\n```\ninner\n```\n````\n", "```\ninner\n```\n"),
        ("```\na\n`````  \n", "a\n"),
        ("```\n```", ""),
        ("  ```\n  a\n    b\n c\n  ```", "a\n  b\nc\n"),
        ("    ```\nindented code is no fence\n    ```", None),
        ("``` a ` b\nno fence\n```\nx\n```", "x\n"),
        ("an inline ```x``` only", None),
        ("```sh\ncut off", None),
        ("```\na\n``\n~~~\n", None),
        ("1. first\n\n   ```\n   x\n   ```\n", "x\n"),
        ("```\r\nx\r\n```\r\n", "x\r\n"),
    ],
)
def test_the_first_block(text, expected):
    assert first_code_block(text) == expected
