"""`pinyon completion`: click's own completion for shells, and the names that it knows beyond commands and options."""

import contextlib

import click
from click.shell_completion import CompletionItem, get_completion_class

from pinyon.app.errors import AppError
from pinyon.app.settings import Folders
from pinyon.app.templates import template_names
from pinyon.models import catalog
from pinyon.models.errors import ModelError
from pinyon.models.store import Store

_VARIABLE = "_PINYON_COMPLETE"


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options, models and templates.

    \b
        pinyon completion bash >> ~/.bashrc
        pinyon completion zsh  >> ~/.zshrc
        pinyon completion fish > ~/.config/fish/completions/pinyon.fish
    """  # noqa: D301  click needs the control character itself
    completion = get_completion_class(shell)
    assert completion is not None, "click has these three"
    print(completion(context.find_root().command, {}, "pinyon", _VARIABLE).source())


def models(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the models that are here, then those that can be pulled."""
    here = _names_here()
    more = [entry.name for entry in catalog.CATALOG if entry.name not in here]
    return _beginning_with(begun, here + more)


def models_here(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the models that are here."""
    return _beginning_with(begun, _names_here())


def templates(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names of the templates."""
    with contextlib.suppress(AppError):
        return _beginning_with(begun, template_names(Folders.of_user().templates))
    return []


def _names_here() -> list[str]:
    with contextlib.suppress(ModelError, AppError):  # a completion has no way to tell
        return [record.name for record in Store(Folders.of_user().models).list().records]
    return []


def _beginning_with(begun: str, names: list[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(begun)]
