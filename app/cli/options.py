"""Options that several commands have, and groups of options whose values a command gets as one parameter."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import click

from pinyon.app.cli import completion
from pinyon.app.cli.answer import Format
from pinyon.app.errors import UsageError

_Command = TypeVar("_Command", bound=Callable[..., object])
_Value = TypeVar("_Value", str, tuple[str, ...], None)


def filled(_context: click.Context, option: click.Parameter, value: _Value) -> _Value:
    """Return an option's value. Raises UsageError where it is empty: an unset variable of the shell means nothing by it."""
    if value is not None and "" in (value if isinstance(value, tuple) else (value,)):
        raise UsageError(f"{option.opts[-1]} is empty: give a value, or leave the option out")
    return value


model = click.option(
    "-m",
    "--model",
    metavar="NAME",
    callback=filled,
    help="Model to use: a name, an alias or the path of a GGUF file.",
    shell_complete=completion.models,
)
context = click.option(
    "--context",
    type=click.IntRange(min=2),
    metavar="N",
    help="Context in tokens (default: the model's, as far as it fits).",
)
force = click.option(
    "--force", "is_forced", is_flag=True, help="Load the model although it does not fit into what is free."
)
schema = click.option(
    "--schema",
    metavar="SCHEMA",
    callback=filled,
    help="Answer in JSON of this shape: 'name, age int', or a file with JSON Schema.",
)


def _into(group: str) -> Callable[[click.Context, click.Parameter, object], None]:
    """Return the callback that puts an option's value into the parameter `group`, unless it was not given."""

    def put(context: click.Context, option: click.Parameter, value: object) -> None:
        values = context.params.setdefault(group, {})
        if value is not None:
            values[option.name] = value

    return put


_flag = partial(click.option, callback=_into("flags"), expose_value=False)
_shown = partial(click.option, callback=_into("output"), expose_value=False)
_FLAGS = (
    _flag("--max-tokens", type=int, metavar="N", help="Stop after N tokens; without it, where the context ends."),
    _flag("--temperature", type=float, metavar="X", help="0 always takes the likeliest token."),
    _flag("--top-p", type=float, metavar="X", help="Draw from the likeliest tokens that make up this probability."),
    _flag("--top-k", type=int, metavar="N", help="Draw from the N likeliest tokens; 0 for all."),
    _flag("--min-p", type=float, metavar="X", help="Leave out tokens below this share of the likeliest one."),
    _flag("--repeat-penalty", type=float, metavar="X", help="Above 1 makes repetition less likely."),
    _flag("--seed", type=int, metavar="N", help="The same seed draws the same tokens."),
)
_OUTPUT = (
    _shown("-x", "--extract", is_flag=True, help="Print the first code block of the answer alone."),
    _shown(
        "--format",
        type=click.Choice([*map(str, Format)]),
        help="json: one object at the end; jsonl: an object a line, as it comes.",
    ),
    _shown("--json", is_flag=True, help="The same as --format json."),
    _shown("--no-stream", is_flag=True, help="Print the text when it is complete."),
    _shown("-R", "--hide-reasoning", is_flag=True, help="Do not show on the terminal what the model thinks."),
)


def flags(command: _Command) -> _Command:
    """Declare the sampling parameters that have options of their own; `flags` is a dict of those that were given."""
    return _declared(_FLAGS, command)


def output(command: _Command) -> _Command:
    """Declare how an answer is printed; `output` has the fields of `answer.Output` by name."""
    return _declared(_OUTPUT, command)


def _declared(options: tuple[Callable[[_Command], _Command], ...], command: _Command) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command
