"""`recsys serve`: a saved model over HTTP."""

from __future__ import annotations

import click

from recsys.cli import options as cli
from recsys.cli.errors import CommandError

_EVENTS = ".events.jsonl"


@cli.command(
    "serve",
    examples=[
        "recsys serve model",
        "recsys serve models/latest --host 0.0.0.0 --workers 2",
        "recsys serve model --model-b other --share 0.1 --log requests.jsonl",
        "recsys serve model --index documents --api-key-env RECSYS_KEY",
    ],
)
@click.argument("model", metavar="MODEL|INDEX")
@cli.option("--host", default="127.0.0.1", help="Address to listen on.")
@cli.option("--port", default=8000, type=click.IntRange(0, 65535), help="Port; 0 is any free one.")
@cli.option("--model-b", metavar="MODEL", help="Other model for some of the users: an A/B test.")
@cli.option(
    "--share", default=0.5, type=click.FloatRange(0, 1), help="Share of users of --model-b."
)
@cli.option("--index", metavar="INDEX", help="Index of `recsys lsi index`, for /v1/search.")
@cli.option("--events", metavar="FILE", help="Log that POST /v1/events writes.")
@cli.option("--log", metavar="FILE", help="Log of recommendations, for `recsys compare --online`.")
@cli.option("--api-key-env", metavar="NAME", help="Environment variable with the required key.")
@cli.option("--cors", metavar="ORIGIN", multiple=True, help="Site that may ask; repeatable.")
def serve(
    model: str,
    host: str,
    port: int,
    model_b: str | None,
    share: float,
    index: str | None,
    events: str | None,
    log: str | None,
    api_key_env: str | None,
    cors: tuple[str, ...],
) -> None:
    """Serve a model over HTTP, with a page to explore it.

    The page is at /, the description of the API at /docs. A model that is replaced, as by `recsys
    fit --force`, or by moving a link, is picked up without a pause.
    """
    try:
        import uvicorn

        from recsys.serve.app import create_app
        from recsys.serve.service import Settings
    except ModuleNotFoundError as error:
        from recsys.messages import missing_extra

        raise CommandError(f"`recsys serve` {missing_extra(str(error.name), 'serve')}") from error
    settings = Settings(model, model_b, share, index, events, log, cors=cors)
    uvicorn.run(create_app(settings), host=host, port=port, log_level="warning")
