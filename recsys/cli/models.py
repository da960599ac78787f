"""`recsys models`: the models, and their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from recsys.cli.options import command, output_options
from recsys.cli.output import Output
from recsys.models.registry import MODELS

if TYPE_CHECKING:
    from recsys.models.parameters import Parameter


@command("models", examples=["recsys models", "recsys models als", "recsys models als --json"])
@click.argument(
    "name",
    required=False,
    shell_complete=lambda ctx, param, text: [each for each in MODELS if each.startswith(text)],
)
@output_options
def models(name: str | None, output: Output) -> None:
    """List models, or the parameters of a model.

    Without NAME: every model, and when to use it. With NAME: its parameters with defaults, valid
    values, and the range that `recsys tune` searches. `--factors`, `--regularization` and
    `--iterations` are options of `recsys fit`; all others are set by -p NAME=VALUE.
    """
    import polars as pl

    from recsys.models.registry import model_class, parameters

    if name is None:
        rows = [{"model": each, "use": model_class(each).summary} for each in MODELS]
        frame = pl.DataFrame(rows)
        output.write_document({"command": "models", "models": rows}, frame)
        return
    declared, summary = parameters(name), model_class(name).summary
    described = [
        {field: getattr(each, field) for field in each.__dataclass_fields__}
        | {"type": each.type.__name__, "choices": list(each.choices)}
        for each in declared
    ]
    rows = [
        {
            "parameter": each.name,
            "default": word(each.default),
            "values": _values(each),
            "tuned": ""
            if each.low is None or each.high is None
            else f"{each.low:g}:{each.high:g}{':log' if each.log else ''}",
            "description": each.description,
        }
        for each in declared
    ]
    columns = ("parameter", "default", "values", "tuned", "description")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String))
    document = {"command": "models", "model": name, "use": summary, "parameters": described}
    output.write_document(document, frame, remark=f"{name}: {summary}")


def word(value: Any) -> str:
    """Return the value of a parameter as `-p` takes it."""
    if value is None:
        return "auto"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(parameter: Parameter) -> str:
    """Return the valid values of a parameter in a few characters."""
    if parameter.choices:
        return "|".join(parameter.choices)
    if parameter.type is bool:
        return "true|false"
    bound = "> 0" if parameter.minimum is None else f">= {parameter.minimum:g}"
    return f"{parameter.type.__name__} {bound}" if parameter.type in (int, float) else "text"
