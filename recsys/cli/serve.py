"""`recsys serve` and `recsys explore`: serve a model over HTTP, or write it as one page."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click
from click.core import ParameterSource

from recsys.addresses import whole
from recsys.cli import inputs
from recsys.cli import options as cli
from recsys.cli.errors import CommandError, require
from recsys.cli.group import Place
from recsys.cli.group import variables as setting_variables
from recsys.cli.output import atomic_file, check_file, note
from recsys.cli.recommend import Source, source_argument, source_options
from recsys.messages import counted, missing_extra
from recsys.serve.access import is_loopback
from recsys.serve.server import listening
from recsys.serve.server import serve as run
from recsys.serve.settings import LENGTH, Limits, Settings

_EVENTS = ".events.jsonl"
MANIFEST = "model.json"  # as in `recsys.model_file`, which needs NumPy

_access = functools.partial(cli.declared, section="Access")
# The help has these options in sections of their own.
_limit = functools.partial(cli.declared, section="Limits")
_key = functools.partial(_access, "KEY,...", multiple=True, commas=True, secret=True)


class _Sources(Place):
    """Places, of which an environment variable has one per line: a path may have spaces."""

    envvar_list_splitter = "\n"


@cli.command(
    "serve",
    examples=[
        "recsys serve model",
        "recsys serve models/latest --host 0.0.0.0 --workers 2",
        "recsys serve model --item-table shop.db::products --condition 'available=stock > 0'",
        "recsys serve --model films=models/films --model books=models/books",
        "recsys serve model --model-b other --share 0.1 --log requests.jsonl",
        "recsys serve model --host 0.0.0.0 --api-key @/run/secrets/recsys-key",
    ],
)
@click.argument("model", metavar="MODEL|INDEX", required=False, type=cli.PLACE)
def serve(
    model: str | None,
    models: tuple[str, ...] = cli.declared(
        "NAME=PATH",
        "Model to serve below /v1/models/NAME/; repeatable, in place of MODEL.",
        "--model",
        setting="models",
        type=cli.Lines(),
        multiple=True,
    ),
    host: str = cli.declared("", "Address to listen on.", default="127.0.0.1"),
    port: int = cli.declared(
        "",
        "Port to listen on; 0 selects a free one.",
        default=8000,
        type=click.IntRange(0, 65535),
    ),
    workers: int = cli.declared("N", "Number of processes.", default=1, type=cli.COUNT),
    model_b: str | None = cli.declared(
        "MODEL", "Second model, for an A/B test with some of the users."
    ),
    share: float = cli.declared(
        "",
        "Share of users who get --model-b.",
        default=0.5,
        type=cli.SHARE,
    ),
    index: str | None = cli.declared(
        "INDEX", "Index of `recsys lsi index`, served at /v1/search."
    ),
    item_table: tuple[str, ...] = cli.declared(
        "FILE|TABLE",
        "Items that may be recommended, with stock, prices and titles as they are now; with "
        "--model, NAME=FILE for each.",
        type=_Sources(),
        multiple=True,
    ),
    refresh: str = cli.declared(
        "TIME", "Time between two readings of --item-table.", default="60s"
    ),
    condition: tuple[str, ...] = cli.declared(
        "NAME=SQL",
        "Condition on items that every request may use by its name; repeatable.",
        type=cli.Lines(),
        multiple=True,
    ),
    together: str | None = cli.declared(
        "TABLE",
        "Output of `recsys together`, served at /v1/together; a file is read again when it "
        "changes.",
    ),
    # The default is next to the model, since a nightly update looks there.
    events: str | None = cli.declared(
        "FILE", "Log of the events from POST /v1/events.  [default: MODEL.events.jsonl]"
    ),
    log: str | None = cli.declared(
        "FILE", "Log of recommendations, for `recsys compare --online`."
    ),
    api_key: tuple[str, ...] = _key(
        "Key that requests must send, or @FILE with one per line; two during a change of keys."
    ),
    list_key: tuple[str, ...] = _key(
        "Key that may only ask for lists of items, or @FILE."
    ),
    api_key_env: tuple[str, ...] = _access(
        "NAME", "Environment variable with an --api-key; repeatable.", multiple=True
    ),
    allowed_host: tuple[str, ...] = _access(
        "NAME",
        "Name of the service in addresses, next to localhost; repeatable.",
        multiple=True,
    ),
    cors: tuple[str, ...] = _access(
        "ORIGIN", "Site whose pages may send requests; repeatable.", multiple=True
    ),
    max_body: int = _limit(
        "BYTES", "Maximum size of a request.", default=2**20, type=cli.COUNT
    ),
    max_items: int = _limit(
        "N", "Maximum length of a list.", default=1000, type=click.IntRange(min=LENGTH)
    ),
    max_batch: int = _limit(
        "N",
        "Maximum number of users, pairs or events in a request.",
        default=1000,
        type=cli.COUNT,
    ),
    timeout: float = _limit(
        "SECONDS",
        "Time limit of a request.",
        default=10.0,
        type=click.FloatRange(min=0, min_open=True),
    ),
) -> None:
    """Serve a model over HTTP, with a page to explore it.

    The page is at /, the description of the API at /docs. Data of users, such as their histories,
    are answered on a loopback address, or with a key; so are conditions of a request, unless
    --condition names them. Lists have the items of --item-table only, which is read again while the
    model stays. When the model is replaced, as by `recsys fit --force` or by moving a link, the new
    one is loaded without interruption; if it is damaged, the service keeps the old one.
    SIGTERM, SIGHUP and Ctrl-C end the service after requests in progress are answered.
    """
    # Named here, because an import would take a second first.
    for name in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
        missing = f"`recsys serve` {missing_extra(name, 'serve')}"
        require(find_spec(name) is not None, missing, CommandError)
    api_keys = _keys("api_key", api_key, api_key_env)
    list_keys = _keys("list_key", list_key)
    # A share in recsys.toml may be for other models.
    require(
        model_b or not cli.is_typed("share"),
        "--share is the share of users of --model-b; give both.",
    )
    paths = _models(model, models)
    of_one = {"model-b": model_b, "together": together, "events": events, "log": log}
    for option, value in of_one.items():
        fits = model is not None or value is None
        require(fits, f"--{option} is for one MODEL; leave it out.")
    for path in filter(None, (*paths.values(), model_b, index)):
        _check_saved(path)
    tables = _tables(item_table, paths)
    # The number of connections has no option: see `serve/connection.py`.
    limits = Limits(body=max_body, items=max_items, batch=max_batch, seconds=timeout)
    settings = {}
    for name, path in paths.items():
        place = Path(path).absolute()  # of a link itself, whose target may change
        settings[name] = Settings(
            path,
            model_b=model_b,
            share=share,
            index=index,
            item_table=tables.get(name),
            refresh=_seconds(refresh),
            conditions=_named("--condition", condition),
            together=None if together is None else whole(together),
            events=events or str(place.with_name(f"{place.name}{_EVENTS}")),
            log=log,
            api_key=api_keys,
            list_key=list_keys,
            allowed_hosts=allowed_host,
            cors=cors,
            limits=limits,
        )
    if together is not None:
        from recsys.serve.loading import load_pairs

        load_pairs(together)  # raises
    if condition:
        from recsys.serve.live_table import check_conditions  # with polars

        check_conditions([*settings.values()])
    # Before the model is loaded, so that a port in use is an error at once.
    listener = listening(host, port)
    address = str(listener.getsockname()[0])
    settings = {name: replace(part, host=address) for name, part in settings.items()}
    shown = f"[{host}]" if ":" in host else host
    number = listener.getsockname()[1]
    served = model or ", ".join(f"{name} ({path})" for name, path in paths.items())
    note(f"serving {served} at http://{shown}:{number}/ (the API is at /docs)")
    # Such a service is open to a network.
    if api_keys is None and not is_loopback(address):
        note(
            "without --api-key (RECSYS_API_KEY), nobody gets data of users: histories, reasons, ids"
        )
    run(settings, listener, workers)


def _check_saved(path: str) -> None:
    """Check that there is a saved model or index in a directory."""
    if not (Path(path) / MANIFEST).is_file():
        # Only to explain what is wrong with the directory.
        from recsys.saving.model_file import read_manifest

        read_manifest(path)  # raises


def _seconds(refresh: str) -> float:
    """Return the number of seconds in the time between two readings."""
    from recsys.data.times import duration  # with polars

    return duration(refresh, "--refresh")


def _models(model: str | None, models: Sequence[str]) -> dict[str, str]:
    """Return the paths of models by their names; the name of a single MODEL is empty."""
    require(
        bool(models) == (model is None), "Give MODEL, or --model NAME=PATH for several."
    )
    if model is not None:
        return {"": model}
    return _named("--model", models)


def _tables(sources: Sequence[str], paths: Mapping[str, str]) -> dict[str, str]:
    """Return the sources of tables of items by the names of models."""
    texts = [whole(source) for source in sources]
    if "" not in paths:
        tables = _named("--item-table", texts)
        for name in tables.keys() - paths.keys():
            raise click.UsageError(f"--item-table {name}=...: no --model is {name!r}.")
        return tables
    require(len(texts) <= 1, "--item-table is given once for one MODEL.")
    return dict.fromkeys(paths, texts[0]) if texts else {}


def _named(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the values of texts such as "cheap=price < 9" by their names."""
    values: dict[str, str] = {}
    for text in texts:
        name, mark, value = (part.strip() for part in text.partition("="))
        example = "cheap=price < 9" if option == "--condition" else "shop=PATH"
        fits = mark and name and value and name not in values
        # A source may have a password.
        given = name if option == "--item-table" else text
        require(fits, f"{option} is NAME=VALUE, such as {example}; got {given!r}.")
        values[name] = value
    return values


def _keys(
    name: str,
    values: Sequence[str],
    variables: Sequence[str] = (),
) -> tuple[str, ...] | None:
    """Return the keys of an option, of files (@FILE) and of environment variables; None if unset.

    A variable or a file without a key is an error, because the service would be open to everybody.
    """
    context = click.get_current_context()
    option = next(param for param in context.command.params if param.name == name)
    # Click ignores a variable that is empty.
    settings = os.environ.keys() & setting_variables(option, context)
    for variable in (*settings, *variables):
        reason = (
            f"The environment variable {variable} has no key; set it, or leave it out."
        )
        require(os.environ.get(variable, "").strip(), reason, CommandError)
    keys = [os.environ[variable] for variable in variables]
    for value in values:
        if value.startswith("@"):
            keys += _keys_in_file(value[1:], option.opts[0])
        else:
            keys.append(value)
    is_set = context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    reason = f"{option.opts[0]} in recsys.toml has no key; set it, or leave it out."
    require(keys or not is_set, reason, CommandError)
    return tuple(keys) or None


def _keys_in_file(path: str, option: str) -> list[str]:
    """Return the keys in the lines of a file.

    A file that is missing is not named: the text may be a key that begins with @.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise CommandError(
            f"The file of keys after {option} @ cannot be read: {reason.lower()}. A key that "
            "begins with @ must be in a file, or in an environment variable."
        ) from None
    keys = [line.strip() for line in lines if line.strip()]
    require(keys, f"{path} has no key; write one per line.", CommandError)
    return keys


@cli.command(
    "explore",
    examples=[
        "recsys explore model --out page.html",
        "recsys explore model --out page.html --items 2000 --users 0",
        "recsys explore model --model-b other --out both.html",
        "recsys explore ratings.csv --model ease --out page.html",
    ],
)
@source_argument
@source_options
def explore(
    source: Source,
    out: str = cli.declared(
        "FILE", "File of the page, such as page.html.", "--out", "-o", required=True
    ),
    force: bool = cli.declared("", "Replace an existing file.", is_flag=True),
    model_b: str | None = cli.declared(
        "MODEL", "Second model, to show next to the first."
    ),
    together: str | None = cli.declared(
        "TABLE", "Output of `recsys together`, shown at each item."
    ),
    items: int | None = cli.declared(
        "N",
        "Number of items in the page; the most rated ones are chosen.",
        show_default="all",
        type=cli.COUNT,
    ),
    users: int = cli.declared(
        "N",
        "Number of users whose ratings are in the page.",
        type=click.IntRange(min=0),
        default=200,
    ),
) -> None:
    """Write a page to explore a model, as one file.

    The input is a saved model, or ratings to fit a model to. The page needs no server and no
    network. Open it in a browser and mark a few items as liked; it shows recommendations and
    the reasons for each. It can also leave items out of a user's history, and show similar
    items, a map of the items and the singular values. The page computes the recommendations
    of `recsys recommend --history` for the models als, bayes, bias, ials, ease, sparse-ease,
    spectral, implicit-knn and popular. For other models, it has the lists of its users;
    `recsys serve` shows the same page for models of every kind and size.

    Everyone who has the file can read the ratings of the first --users in it; --users 0 leaves them
    out.
    """
    from recsys.serve.static_page import static_page

    check_file(out, "--out", (".html", ".htm"))
    sentence = f"{out} exists; choose another --out, or add --force."
    require(force or not Path(out).exists(), sentence, CommandError)
    first = source.open()
    second = None if model_b is None else inputs.load_model(model_b)
    # Computed before the file is opened, which replaces an older page.
    page = static_page(first, second, n_items=items, n_users=users, together=together)
    text = page.html.encode()
    with atomic_file(Path(out)) as stream:
        stream.write(text)
    contents = f"{counted(page.n_items, 'item')} and the ratings of {counted(page.n_users, 'user')}"
    note(f"saved in {out}: {contents}, {len(text) / 1e6:.1f} MB; open it in a browser")
