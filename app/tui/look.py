"""How Markdown looks in the theme of the moment."""

from textual.app import App
from textual.color import Color, ColorParseError

from pinyon.app.tui.rows import Look


def look_of(app: App[object]) -> Look:
    """Return the look that goes with the app's theme."""
    variables = app.theme_variables

    def color(name: str) -> str:
        try:
            return Color.parse(variables[name]).rich_color.name
        except (KeyError, ColorParseError):
            return "default"

    primary, accent = color("primary"), color("accent")
    return Look(
        styles={
            "markdown.h1": f"bold underline {primary}",
            "markdown.h2": f"bold {primary}",
            "markdown.h3": "bold underline",
            "markdown.h4": "bold",
            "markdown.h5": "bold italic",
            "markdown.h6": "italic",
            "markdown.code": accent,
            "markdown.block_quote": "italic",
            "markdown.item.bullet": primary,
            "markdown.item.number": primary,
            "markdown.link": "underline",
            "markdown.link_url": "dim",
            "markdown.hr": "dim",
            "markdown.table.border": "dim",
            "markdown.table.header": "bold",
        },
        code_theme="one-dark" if app.current_theme.dark else "xcode",
        code_background=color("panel"),
    )
