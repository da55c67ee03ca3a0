import base64
from pathlib import Path

import pytest

from pinyon.app.tui.clipboard import copy, osc52


class Desktop:
    """A machine with these tools on its PATH; `obeys` false: they fail."""

    def __init__(self, folder: Path, *tools: str, obeys: bool = True, **environment: str) -> None:
        for tool in tools:
            (folder / tool).touch(mode=0o755)
        self.environment = {"PATH": str(folder), **environment}
        self.obeys = obeys
        self.terminal = ""
        self.ran: list[tuple[str, ...]] = []
        self.clipboard = ""

    def run(self, command: tuple[str, ...], data: bytes) -> bool:
        self.ran.append(command)
        self.clipboard = data.decode()
        return self.obeys

    def write(self, sequence: str) -> None:
        self.terminal += sequence

    async def copy(self, text: str, platform: str = "linux") -> str:
        return await copy(text, self.write, self.environment, platform, self.run)


def of(text: str) -> str:
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"


@pytest.mark.parametrize(
    ("tools", "environment", "platform", "command"),
    [
        (("wl-copy", "xclip"), {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}, "linux", ("wl-copy",)),
        (("xclip",), {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}, "linux", ("xclip", "-selection", "clipboard")),
        (("pbcopy",), {}, "darwin", ("pbcopy",)),
    ],
)
async def test_the_desktops_tool(
    tmp_path: Path, tools: tuple[str, ...], environment: dict[str, str], platform: str, command: tuple[str, ...]
) -> None:
    desktop = Desktop(tmp_path, *tools, **environment)
    assert await desktop.copy("grün 🌲", platform) == "copied to the clipboard"
    assert (desktop.ran, desktop.clipboard, desktop.terminal) == ([command], "grün 🌲", "")


@pytest.mark.parametrize(
    "environment",
    [
        {"DISPLAY": ":0", "SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"},  # the desktop would be the other machine's
        {"DISPLAY": ":0", "SSH_TTY": "/dev/pts/3"},
        {},
    ],
)
async def test_through_the_terminal_where_no_desktop_is_here(tmp_path: Path, environment: dict[str, str]) -> None:
    desktop = Desktop(tmp_path, "xclip", **environment)
    assert "OSC 52" in await desktop.copy("grün 🌲")
    assert (desktop.ran, desktop.terminal) == ([], of("grün 🌲"))


@pytest.mark.parametrize("tools", [("xclip",), ()])
async def test_through_the_terminal_where_the_tool_fails_or_is_missing(tmp_path: Path, tools: tuple[str, ...]) -> None:
    desktop = Desktop(tmp_path, *tools, obeys=False, DISPLAY=":0")
    assert "OSC 52" in await desktop.copy("text")
    assert desktop.terminal == of("text")


def test_in_tmux_it_is_said_to_tmux_and_to_the_terminal_around_it() -> None:
    assert osc52("hi", in_tmux=True) == "\x1b]52;c;aGk=\x07" + "\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\"


async def test_control_characters_are_not_copied(tmp_path: Path) -> None:
    """Pasted into a shell they would act."""
    desktop = Desktop(tmp_path, "xclip", DISPLAY=":0")
    await desktop.copy("a\x1b[2Jb\x07c\x9bd\x7f\n\tend")
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(desktop.clipboard)
    assert desktop.clipboard.startswith("a")
    assert desktop.clipboard.endswith("\n\tend")


async def test_half_a_character_does_not_stop_a_copy(tmp_path: Path) -> None:
    desktop = Desktop(tmp_path)
    await desktop.copy("a\ud83d")
    assert desktop.terminal.startswith("\x1b]52;c;")


async def test_real_tools_that_work_fail_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinyon.app.tui.clipboard._TOOL_TIMEOUT_S", 0.2)
    tool = tmp_path / "xclip"
    kept = tmp_path / "kept"
    environment = {"PATH": str(tmp_path), "DISPLAY": ":0"}
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    outcomes = {}
    for name, script in {"works": f"cat > {kept}", "fails": "exit 1", "hangs": "exec sleep 5"}.items():
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        terminal: list[str] = []
        await copy("text", terminal.append, environment, "linux")
        outcomes[name] = bool(terminal)
    assert outcomes == {"works": False, "fails": True, "hangs": True}
    assert kept.read_text() == "text"


@pytest.mark.parametrize(
    ("tool", "arguments", "variables", "platform"),
    [
        ("xclip", "-selection clipboard", {"DISPLAY": ":0"}, "linux"),
        ("wl-copy", "", {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}, "linux"),
        ("pbcopy", "", {}, "darwin"),
    ],
)
async def test_what_a_tool_on_the_path_gets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    arguments: str,
    variables: dict[str, str],
    platform: str,
) -> None:
    given, kept = tmp_path / "given", tmp_path / "kept"
    (tmp_path / tool).write_text(f'#!/bin/sh\necho "$@" > {given}\nexec cat > {kept}\n')
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    terminal: list[str] = []
    told = await copy("grün 🌲\x1b[2J\nend", terminal.append, {"PATH": str(tmp_path), **variables}, platform)
    assert (told, terminal) == ("copied to the clipboard", [])
    assert given.read_text().strip() == arguments
    assert kept.read_text("utf-8") == "grün 🌲[2J\nend"
