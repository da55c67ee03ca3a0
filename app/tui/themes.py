"""The chat's own two themes."""

from typing import Final

from textual.theme import Theme

DARK: Final = Theme(
    name="dark",
    primary="#7fb4ca",
    secondary="#98bb6c",
    accent="#e6a75c",
    warning="#e6a75c",
    error="#e46876",
    success="#98bb6c",
    foreground="#dcd7ba",
    background="#16161d",
    surface="#1f1f28",
    panel="#2a2a37",
    dark=True,
)
LIGHT: Final = Theme(
    name="light",
    primary="#2b6a8a",
    secondary="#4f7033",
    accent="#9a5b13",
    warning="#9a5b13",
    error="#b3263a",
    success="#4f7033",
    foreground="#2a2a33",
    background="#faf8f2",
    surface="#f0ede4",
    panel="#e4e0d4",
    dark=False,
)
