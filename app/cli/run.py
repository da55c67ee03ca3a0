"""`pinyon run`: one prompt, one answer. stdout carries the answer alone, stderr everything else."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

import click
import msgspec
from click.core import ParameterSource

from pinyon.app.ask import Ask, Chat, Prompt, RawText
from pinyon.app.attachments import STDIN
from pinyon.app.cli import completion, options
from pinyon.app.cli.answer import Format, Output
from pinyon.app.cli.ending import TimeLimit
from pinyon.app.cli.exchange import Wish, exchange
from pinyon.app.cli.failures import ExitCode
from pinyon.app.cli.first_model import offer_a_model
from pinyon.app.cli.prompt_sources import Given, argument_text, given
from pinyon.app.errors import UsageError
from pinyon.app.named_options import NamedOptions, named_options, named_values
from pinyon.app.schema_words import schema_of
from pinyon.app.settings import Folders, Settings, load_settings
from pinyon.app.templates import Template, read_template
from pinyon.engine import grammar
from pinyon.engine.request import Speculate
from pinyon.models import catalog
from pinyon.models.chat_template import Message
from pinyon.models.store import Store

_OF_CHAT = {"words", "model", "context", "is_forced", "private", "continues", "interactive"}
"""The parameters that the chat takes, too."""
_KEEPS_NOTHING = "--private, or the setting history = false"


@click.command(name="run")
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]...", shell_complete=completion.models)
@options.model
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    callback=options.filled,
    help="Put a file before the prompt: also a folder, - for the pipe, or a URL where the settings allow it; repeatable.",
)
@click.option(
    "-s", "--system", metavar="TEXT", callback=options.filled, help="Instructions that come before the prompt."
)
@click.option(
    "-t",
    "--template",
    "template_name",
    metavar="NAME",
    help="Use a template: its name, or the path of its file.",
    shell_complete=completion.templates,
)
@click.option(
    "-p", "--param", "variables", multiple=True, metavar="NAME=VALUE", help="A template's variable; repeatable."
)
@click.option("-c", "--continue", "continues", is_flag=True, help="Go on with the last conversation.")
@click.option("-i", "--interactive", is_flag=True, help="Go on in the chat after the answer.")
@click.option(
    "-o",
    "--option",
    "named",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a sampling parameter by its name, or max_tokens; repeatable.",
)
@options.context
@options.force
@options.flags
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable.")
@options.schema
@options.output
@click.option("--stats", is_flag=True, help="Print figures about the answer as a line of JSON on stderr.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Stop after S seconds, reading and loading included.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what the prompt would cost, and compute nothing.")
@click.option("--no-cache", is_flag=True, help="Compute the whole prompt, and keep nothing of it.")
@click.option("--private", is_flag=True, help="Write nothing of it to disk, the history included.")
@click.option(
    "--deterministic", is_flag=True, help="The same prompt and seed give the same answer, whatever else was asked."
)
@click.option(
    "--speculate",
    type=click.Choice([*map(str, Speculate)]),
    metavar="HOW",
    help="Draft tokens ahead: auto, suffix (from text that is there already) or off.",
)
@click.option("--no-template", is_flag=True, help="Send the text as it is, without the model's chat template.")
@click.pass_context
def command(
    click_context: click.Context,
    words: tuple[str, ...],
    model: str | None,
    files: tuple[str, ...],
    system: str | None,
    template_name: str | None,
    variables: tuple[str, ...],
    continues: bool,
    interactive: bool,
    named: tuple[str, ...],
    context: int | None,
    is_forced: bool,
    flags: dict[str, object],
    stop: tuple[str, ...],
    schema: str | None,
    output: dict[str, object],
    stats: bool,
    timeout: float | None,
    is_dry: bool,
    no_cache: bool,
    private: bool,
    deterministic: bool,
    speculate: str | None,
    no_template: bool,
) -> ExitCode:
    """Answer one prompt. Text from a pipe comes before the PROMPT.

    \b
        pinyon run "Why is the sky blue?"
        pinyon run smollm2 "Why is the sky blue?"
        cat notes.txt | pinyon run "Summarise:"
        pinyon run -f main.py -x "Write tests for this."

    A first word that names an installed model, or one that can be pulled, is the model. Without a prompt, on a terminal,
    the chat opens.
    """  # noqa: D301  click needs the control character itself
    folders = Folders.of_user()
    settings = load_settings(folders)
    if model is None and words and _names_a_model(Store(folders.models), words[0]):
        model, words = words[0], words[1:]
    if not words and _asks_for_the_chat(click_context):
        return _open_chat(folders, settings, model, context, private=private, continues=continues, is_forced=is_forced)
    template = Template() if template_name is None else read_template(template_name, folders.templates)
    system = argument_text(system) if system is not None else None
    printed = msgspec.convert(output, Output)
    printed = msgspec.structs.replace(printed, extract=printed.extract or template.extract)
    has_system = (system or template.system) is not None
    is_kept = settings.history and not private
    _refuse(
        {
            f"-i goes on with what was kept, and nothing is kept with {_KEEPS_NOTHING}": interactive and not is_kept,
            "-i goes on after an answer, and --dry-run gives none": interactive and is_dry,
            "-f - is given twice: the pipe can be read once": files.count(STDIN) > 1,
            "-i needs a terminal": interactive and not (sys.stdout.isatty() and sys.stderr.isatty()),
            f"-c goes on with what was kept, and nothing is kept with {_KEEPS_NOTHING}": continues and not is_kept,
            "-c sends messages, which need the chat template that --no-template leaves out": continues and no_template,
            "-c goes on with a conversation that has its instructions: leave out --system": continues and has_system,
            "-p fills in a template: name it with -t": bool(variables) and template_name is None,
            "--system needs the chat template that --no-template leaves out: put it into the prompt": no_template
            and has_system,
            **printed.contradictions,
        }
    )
    choices = _choices(template, named, flags)
    shape = schema or template.schema
    constraint = None if shape is None else grammar.json_schema(schema_of(shape))
    pipe_is_needed = template.takes_input or not template.prompt
    limit = TimeLimit(timeout)
    with limit.ends_blocking("the prompt was not read"):
        material = given(words, files, urls=settings.urls, pipe_is_needed=pipe_is_needed)
    text, instructions = template.filled(material.text, named_values(map(argument_text, variables), "-p"))
    ask = Ask(
        prompt=_prompt(text, instructions if system is None else system, no_template),
        sampling=choices.sampling,
        max_tokens=choices.max_tokens,
        stop=tuple(map(argument_text, stop)),
        grammar=constraint,
        use_cache=not no_cache,
        private=private,
        deterministic=deterministic or None,
        speculate=None if speculate is None else Speculate(speculate),
    )
    wish = Wish(
        folders,
        settings,
        model or template.model,
        context,
        ask,
        _title(material, text),
        is_kept=is_kept,
        attachments=material.attachments,
        continues=continues,
        limit=limit,
        is_forced=is_forced,
    )
    if wish.model is None:
        offer_a_model(folders, settings)
    if is_dry:
        from pinyon.app.cli.dry_run import dry_run  # noqa: PLC0415  only where it is asked for

        asyncio.run(dry_run(wish, as_json=printed.chosen is not Format.TEXT))
        return ExitCode.OK
    code = asyncio.run(exchange(wish, printed.answer(), with_stats=stats))
    if interactive and code is ExitCode.OK:
        return _open_chat(folders, settings, wish.model, context, continues=True, is_forced=is_forced)
    return code


def _names_a_model(store: Store, word: str) -> bool:
    """Whether the word is a model's name, or looks like a model's file; a prompt may be anything else, paths included."""
    is_file_name = word.lower().endswith(".gguf") and not any(map(str.isspace, word))
    return is_file_name or catalog.find(word) is not None or store.knows(word)


def _asks_for_the_chat(context: click.Context) -> bool:
    """Whether a terminal was given nothing but what the chat takes, too."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    names = {parameter.name for parameter in context.command.params if parameter.name is not None}
    chosen = {name for name in names if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    return chosen <= _OF_CHAT


def _open_chat(
    folders: Folders,
    settings: Settings,
    model: str | None,
    context: int | None,
    *,
    continues: bool,
    private: bool = False,
    is_forced: bool = False,
) -> ExitCode:
    from pinyon.app.cli import chat  # noqa: PLC0415  only where it opens

    if not sys.stdin.isatty():  # the prompt came through a pipe, keys come from the terminal
        os.dup2(os.open("/dev/tty", os.O_RDWR), 0)
    return chat.open_chat(
        chat.Chat(folders, settings, model, context, private, continues=continues, is_forced=is_forced)
    )


def _refuse(contradictions: Mapping[str, bool]) -> None:
    """Raise UsageError with the first of these sentences that is true."""
    for sentence, is_true in contradictions.items():
        if is_true:
            raise UsageError(sentence)


def _choices(template: Template, options: Sequence[str], flags: Mapping[str, object]) -> NamedOptions:
    """Return what was chosen: by a flag or by -o, else by the template."""
    named = named_values(options, "-o")
    if twice := sorted(named.keys() & flags.keys()):
        raise UsageError(f"{twice[0]} is given twice: with -o, and with the option of its own")
    return named_options({**template.options, **named, **flags})


def _prompt(text: str, system: str | None, no_template: bool) -> Prompt:
    if not text.strip():
        raise UsageError('there is no prompt: give one, as in `pinyon run "Why is the sky blue?"`, or pipe text in')
    if no_template:
        return RawText(text)
    before = () if system is None else (Message("system", system),)
    return Chat((*before, Message("user", text)))


def _title(material: Given, text: str) -> str:
    """Return what a conversation is called before its words are cut: what was said, else what was attached or piped."""
    names = ", ".join(attachment.name for attachment in material.attachments)
    return material.words or names or material.piped or text
