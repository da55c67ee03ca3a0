"""`pinyon logs`: the conversations that were kept, and what to do with them."""

import asyncio
import contextlib
import datetime as dt
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click
import msgspec

from pinyon.app.ages import age_s
from pinyon.app.cli import options
from pinyon.app.cli.terminal import for_stdout, print_json, printable, tell
from pinyon.app.errors import AppError, UsageError
from pinyon.app.history import export
from pinyon.app.history.errors import HistoryFileError, NoConversationError
from pinyon.app.history.history import History
from pinyon.app.history.records import Conversation, Found, Message, Role
from pinyon.app.search_query import Query, query_of
from pinyon.app.settings import Folders, load_settings
from pinyon.engine.errors import EngineError

_ALL: Final = 1 << 31
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_FORMATS: Final[dict[str, Callable[..., str]]] = {
    "md": export.markdown,
    "jsonl": export.jsonl,
    "html": export.html,
}

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_count = click.option(
    "-n", "--count", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many."
)
_reasoning = click.option("--reasoning", is_flag=True, help="With what the model thought.")


@click.group(name="logs", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at the conversations that were kept. An ID may be shortened; without one, the latest is meant."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@command.command(name="list")
@_count
@_json
def list_(count: int, as_json: bool) -> None:
    """List conversations, the latest first. Shown are ID, time, number of messages, model and title."""
    with _history() as history:
        listed = history.conversations(limit=count)
    if as_json:
        print_json(listed)
        return
    for each in listed:
        print(f"{each.id}  {_time(each.updated_at)}  {each.messages:>4}  {_line(each.model):<20}  {_line(each.title)}")


@command.command()
@click.argument("id", required=False)
@_reasoning
@_json
def show(id: str | None, reasoning: bool, as_json: bool) -> None:  # noqa: A002  the name is shown in the help
    """Show a conversation as it stands. Of several answers to a message that is the one used last; --json has all."""
    with _history() as history:
        conversation = _named(history, id)
        tree = history.tree(conversation.id)
    if as_json:
        print_json(_Whole(conversation, [*tree.messages.values()]))
        return
    print(for_stdout(export.markdown(conversation, tree.path(), reasoning=reasoning)), end="")


class _Whole(msgspec.Struct):
    conversation: Conversation
    messages: Sequence[Message]


@command.command()
@click.argument("words", nargs=-1)
@click.option("--role", type=click.Choice([role.value for role in Role]), help="Only messages of this role.")
@click.option(
    "--model",
    metavar="NAME",
    callback=options.filled,
    help="Only answers of models with this name, or one that begins so.",
)
@click.option("--since", metavar="AGE", help="Only messages of so long ago at most: 45m, 12h, 30d, 2w.")
@_count
@_json
def search(
    words: tuple[str, ...], role: str | None, model: str | None, since: str | None, count: int, as_json: bool
) -> None:
    """Find messages that hold all the words, the newest first. The last word may go on; quotes make a phrase.

    Without words, all messages of that role, model or age are found. Among the words, role:user, model:NAME and since:7d are
    the same as the options.
    """
    since_s = None if since is None else time.time() - age_s(since, "--since")
    typed, chosen = query_of(" ".join(words)), Query("", Role(role) if role else None, model, since_s)
    for name, one, other in zip(Query._fields, typed, chosen, strict=True):
        if one and other:
            raise UsageError(f"{name} is given twice: among the words, and as an option")
    query = Query(typed.words, typed.role or chosen.role, typed.model or chosen.model, typed.since or chosen.since)
    if query == Query(""):
        raise UsageError("nothing is searched for: give words, or --role, --model or --since")
    with _history() as history:
        found = history.search(query.words, role=query.role, model=query.model, since=query.since, limit=count)
    if as_json:
        print_json(found)
        return
    for each in found:
        title = _line(each.conversation.title)
        print(
            f"{each.conversation.id}  {_time(each.conversation.updated_at)}  {each.role:<9}  {title}\n    {_marked(each)}"
        )


@command.command(name="export")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--format", "form", type=click.Choice([*_FORMATS]), default="md", show_default=True, help="Of the document."
)
@_reasoning
def export_(ids: tuple[str, ...], form: str, reasoning: bool) -> None:
    """Print conversations as Markdown, JSON Lines or HTML. JSON Lines hold OpenAI's messages; HTML needs no other file."""
    if form == "html" and len(ids) > 1:
        raise UsageError(f"an HTML file holds one conversation: export the {len(ids)} one by one")
    with _history() as history:
        for id_ in ids or (None,):
            conversation = _named(history, id_)
            path = history.tree(conversation.id).path()
            print(for_stdout(_FORMATS[form](conversation, path, reasoning=reasoning)), end="")


@command.command()
@click.argument("id")
@click.argument("title", nargs=-1, required=True)
def rename(id: str, title: tuple[str, ...]) -> None:  # noqa: A002
    """Give a conversation another title."""
    words = " ".join(title).strip()
    if not words:
        raise UsageError("a title needs words")
    with _changing() as history:
        history.rename(_named(history, id).id, words)


@command.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--now", is_flag=True, help="Remove them from the disk at once.")
def delete(ids: tuple[str, ...], now: bool) -> None:
    """Delete conversations and what was computed for them. For 30 days they can be brought back."""
    with _changing() as history:
        named = (_named(history, id_, also_deleted=now) for id_ in ids)
        chosen = {each.id: each for each in named}
        for id_ in chosen:
            (history.purge if now else history.delete)(id_)
    asyncio.run(_forget_computed([*chosen]))
    for each in chosen.values():
        after = "" if now else f"; `pinyon logs undelete {each.id}` brings it back"
        print(f"{each.id} is deleted: {_line(each.title)}{after}", file=sys.stderr)


@command.command()
@click.argument("id")
def undelete(id: str) -> None:  # noqa: A002
    """Bring a deleted conversation back; its ID must be whole."""
    with _changing() as history:
        try:
            history.undelete(id)
        except NoConversationError as error:
            raise NoConversationError(f"{error} that could come back: its ID must be whole") from None


def _history() -> History:
    return History(Folders.of_user().history_file, tell)


@contextlib.contextmanager
def _changing() -> Iterator[History]:
    """A history whose changes are on disk when the context ends. Raises HistoryFileError."""
    with _history() as history:
        yield history
        history.flush()
        if history.why_not_saved:
            raise HistoryFileError(f"nothing was changed: {history.why_not_saved}")


def _named(history: History, id_: str | None, *, also_deleted: bool = False) -> Conversation:
    """Return the conversation that is meant; one that is deleted already needs its whole ID."""
    if id_ is None:
        if (latest := history.latest()) is None:
            raise UsageError("no conversation was kept yet")
        return latest
    with contextlib.suppress(NoConversationError):
        return history.conversation(id_, also_deleted=also_deleted)
    found = [each for each in history.conversations(limit=_ALL) if each.id.startswith(id_)]
    if not found:
        raise NoConversationError(f"there is no conversation {printable(id_)}: `pinyon logs` lists them")
    if len(found) > 1:
        raise UsageError(f"{len(found)} conversations have an ID that begins with {id_!r}: give more of it")
    return found[0]


async def _forget_computed(conversations: Sequence[str]) -> None:
    from pinyon.app.backend import Backend  # noqa: PLC0415  only where something is deleted

    folders = Folders.of_user()
    async with Backend(folders, load_settings(folders)) as backend:
        for conversation in conversations:
            try:
                await backend.forget(conversation)
            except (AppError, EngineError, OSError, sqlite3.Error) as error:
                tell(f"not all that was computed for {conversation} was deleted: {error}")


def _time(at_s: float) -> str:
    return f"{dt.datetime.fromtimestamp(at_s).astimezone():%Y-%m-%d %H:%M}"


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _marked(found: Found) -> str:
    """Return the snippet, its matches bold on a terminal."""
    begin, end = (_BOLD, _PLAIN) if sys.stdout.isatty() else ("", "")
    parts, done = [], 0
    for start, stop in found.matches:
        parts += [printable(found.snippet[done:start]), begin, printable(found.snippet[start:stop]), end]
        done = stop
    return "".join((*parts, printable(found.snippet[done:])))
