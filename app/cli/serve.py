"""`pinyon serve`: answer over HTTP, and for the other commands. stderr says where, for whom and with which model."""

import asyncio
import sys
from pathlib import Path

import click
import msgspec

from pinyon.app.cli import options
from pinyon.app.cli.progress import loading
from pinyon.app.default_model import default_model
from pinyon.app.settings import Folders, load_settings
from pinyon.models.store import Store

DEFAULT_PORT = 8642


@click.command(name="serve")
@click.option(
    "-m",
    "--model",
    callback=options.filled,
    help="Model that stays, and answers where none is named: a name, an alias or the path of a GGUF file.",
)
@options.context
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 takes a free one."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="Serve only who knows a token in F, one a line; F is written if absent. Needed where others can reach the address.",
)
@click.option("--allow-host", multiple=True, metavar="H", help="Answer to this name too; repeatable.")
@click.option("--allow-origin", multiple=True, metavar="O", help="Let pages of this origin use the server; repeatable.")
@options.force
@click.option("--preload", is_flag=True, help="Load the model now, not with the first request.")
def command(
    model: str | None,
    context: int | None,
    host: str,
    port: int,
    token_file: Path | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    is_forced: bool,
    preload: bool,
) -> None:
    """Serve models over HTTP, with OpenAI's API.

    A model is loaded when a request names it, and leaves memory when it is not used, or another one needs the room.

    `pinyon run` uses the server while it runs. Ctrl+C, SIGTERM or `pinyon stop` lets open answers finish for 10 s.
    """
    from pinyon.app.api.reach import describe_reach  # noqa: PLC0415  the server's libraries take long to import
    from pinyon.app.api.server import ServeOptions, serve  # noqa: PLC0415
    from pinyon.app.service import Service  # noqa: PLC0415

    folders = Folders.of_user()
    settings = load_settings(folders)
    settings = msgspec.structs.replace(
        settings, model=model or settings.model, context=settings.context if context is None else context
    )
    store = Store(folders.models)
    if settings.model is not None:
        store.resolve(settings.model)

    async def prepare(service: Service, port: int) -> None:
        print(describe_reach(host, port), file=sys.stderr, flush=True)
        line = "The model that a request names is loaded with it."
        if preload:
            name = default_model(store, settings)
            with loading(name) as on_progress:
                loaded = await service.load(name, on_progress=on_progress, is_forced=is_forced)
            line = "\n".join(
                (
                    f"{loaded.name} is loaded, with a context of {loaded.context_tokens:,} tokens.",
                    *(f"So that it fits: {text}." for text in loaded.compromises),
                )
            )
        elif settings.model is not None:
            line = f"{settings.model} is loaded with the first request."
        if service.why_no_disk:
            line += f"\nNothing computed is kept on disk: {service.why_no_disk}."
        print(f"{line}\nCtrl+C or `pinyon stop` ends it.", file=sys.stderr, flush=True)

    options = ServeOptions(host, port, settings.model, token_file, allow_host, allow_origin)
    asyncio.run(serve(options, folders, settings, prepare))
