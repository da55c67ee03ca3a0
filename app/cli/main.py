"""The command line's entry: finds the command, imports only what it needs, turns every error into a line and an exit code.

Exit codes: 0 ok, 1 generation failed, 2 usage, 3 model missing or unloadable, 4 does not fit, 130 interrupted.
"""

import importlib
import os
import sys
from typing import Final, NoReturn

import click

from pinyon.app.cli.failures import ExitCode, report

COMMANDS: Final = {
    "run": "pinyon.app.cli.run",
    "batch": "pinyon.app.cli.batch",
    "pull": "pinyon.app.cli.pull",
    "search": "pinyon.app.cli.search",
    "add": "pinyon.app.cli.add",
    "list": "pinyon.app.cli.list",
    "show": "pinyon.app.cli.show",
    "fit": "pinyon.app.cli.fit",
    "verify": "pinyon.app.cli.verify",
    "rm": "pinyon.app.cli.rm",
    "serve": "pinyon.app.cli.serve",
    "devices": "pinyon.app.cli.devices",
    "ps": "pinyon.app.cli.ps",
    "stop": "pinyon.app.cli.stop",
    "cache": "pinyon.app.cli.cache",
    "chat": "pinyon.app.cli.chat",
    "logs": "pinyon.app.cli.logs",
    "completion": "pinyon.app.cli.completion",
}
"""Command name -> module with a click command `command`; imported when the command is used."""


class LazyGroup(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[name]).command
        return command


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pinyon")
@click.pass_context
def pinyon(context: click.Context) -> ExitCode | None:
    """Run language models on this machine."""
    if context.invoked_subcommand is not None:
        return None
    return _first_steps(context)


def _first_steps(context: click.Context) -> ExitCode:
    """Without a command: offer a model where none is here, else show the commands, as a mistake that ends with code 2."""
    from pinyon.app.cli.first_model import offer_a_model  # noqa: PLC0415  other commands start without it
    from pinyon.app.first_run import is_first_run  # noqa: PLC0415
    from pinyon.app.settings import Folders, load_settings  # noqa: PLC0415

    folders = Folders.of_user()
    settings = load_settings(folders)
    if offer_a_model(folders, settings):
        return ExitCode.MODEL if is_first_run(folders, settings) else ExitCode.OK
    print(context.get_help(), file=sys.stderr)
    return ExitCode.USAGE


def main() -> NoReturn:
    """Run the command line and exit."""
    _mend_standard_streams()
    try:
        code = ExitCode(pinyon.main(standalone_mode=False) or ExitCode.OK)
    except click.ClickException as error:
        error.show()
        code = ExitCode(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        code = ExitCode.OK  # the reader has seen enough
    except Exception as error:  # noqa: BLE001  a user never sees a traceback
        code = report(error)
    _flush_or_drop_output()
    sys.exit(code)


def _mend_standard_streams() -> None:
    """UTF-8 whatever the locale; a closed stream becomes the null device, so that no other file takes its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def _flush_or_drop_output() -> None:
    """Flush stdout; if its reader has gone, silence the interpreter's own attempt at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
