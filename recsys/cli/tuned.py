"""The commands that use what `recsys tune` found."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.cli.options import FitOptions, ReaderOptions
from recsys.cli.parameters import PARAMETERS
from recsys.cli.splits import SplitOptions

if TYPE_CHECKING:
    from recsys.evaluation.tuning import Tuning

__all__ = ["commands_with"]


def commands_with(
    found: Tuning,
    ratings: str | None,
    train: str | None,
    fitting: FitOptions,
    splitting: SplitOptions,
    reader: ReaderOptions,
) -> dict[str, str]:
    """Return the commands that use what was found, as a shell takes them."""
    model = ["--model", found.model]
    for parameter in PARAMETERS:
        if found.parameters.get(parameter.name) is not None:
            model += _words(parameter.option, found.parameters[parameter.name])
    seed, reading = ["--seed", str(fitting.seed)], _options(reader)
    data = str(train) if ratings is None else _training_file(ratings)
    target = ["--out", _free_name(f"{found.model}-tuned")]
    own_seed = seed if "random_state" in found.defaults else []
    lines = {"fit": ["recsys", "fit", data, *model, *own_seed, *reading, *target]}
    if ratings is not None:
        words = ["recsys", "evaluate", ratings, *model, *seed, *_options(splitting), *reading]
        lines["evaluate"] = words
    return {name: shlex.join(words) for name, words in lines.items()}


def _training_file(path: str) -> str:
    """Return `path`, or the training file of a folder with a split."""
    from recsys.evaluation.storing import split_files

    files = None if path == "-" else split_files(path)
    return path if files is None else str(files["train"])


def _options(bundle: ReaderOptions | SplitOptions) -> list[str]:
    """Return the options of a bundle that are not the defaults."""
    words = []
    for each in fields(bundle):
        value = getattr(bundle, each.name)
        if value != each.default:
            words += _words(f"--{each.name.replace('_', '-')}", value)
    return words


def _words(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    return [option, str(value)]


def _free_name(stem: str) -> str:
    """Return the first of stem, stem-2, stem-3, ... that is not there yet."""
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    return next(name for name in names if not Path(name).exists())
