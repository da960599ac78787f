"""The parameters of all models as options, known without importing a model.

A new parameter of a model is one entry here, or one more default in an entry; a test compares the
table with every model's own parameters. Seed and threads have options of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from recsys.cli.errors import CommandError

__all__ = ["ELSEWHERE", "PARAMETERS", "Parameter", "applying", "check_applicable"]

ELSEWHERE = {"random_state": "seed", "threads": "threads"}
"""Parameters that every verb that fits has as options, whatever the model, and their options."""

POSITIVE = click.FloatRange(min=0, min_open=True)
NOT_NEGATIVE = click.FloatRange(min=0)
COUNT = click.IntRange(min=1)


@dataclass(frozen=True)
class Parameter:
    """One parameter, and the models that have it with their defaults.

    Attributes
    ----------
    name : str
        As the models call it; the option has dashes instead of underscores.
    type : click type
        `click.BOOL` makes a pair of flags.
    metavar : str
        What stands for the value in the help; empty for flags and choices, which show themselves.
    help : str
        One sentence.
    defaults : mapping of model name to default
    """

    name: str
    type: click.ParamType[Any]
    metavar: str
    help: str
    defaults: Mapping[str, Any]

    @property
    def option(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def full_help(self) -> str:
        """The help with the models and their defaults."""
        words = {True: "on", False: "off", None: "chosen by the data"}
        shown = {
            model: words[value] if isinstance(value, bool | None) else value
            for model, value in self.defaults.items()
        }
        listed = ", ".join(f"{model}: {value}" for model, value in shown.items())
        return f"{self.help[:-1]}; {listed} by default."


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "factors",
        COUNT,
        "K",
        "Length of the vectors.",
        {
            "als": 32,
            "bayes": 32,
            "implicit-als": 64,
            "implicit-bpr": 64,
            "implicit-lmf": 16,
            "spectral": None,
        },
    ),
    Parameter("max_rank", COUNT, "K", "Length of the vectors, at most.", {"softimpute": 100}),
    Parameter(
        "regularization",
        POSITIVE,
        "X",
        "Penalty of the vectors (ease: of the weights).",
        {
            "als": 1.3,
            "softimpute": None,
            "ease": None,
            "implicit-als": None,
            "implicit-bpr": 0.01,
            "implicit-lmf": 6.0,
        },
    ),
    Parameter(
        "count_power",
        NOT_NEGATIVE,
        "X",
        "Exponent of the number of ratings that the penalty grows with.",
        {"als": 0.5, "bayes": 0.3},
    ),
    Parameter(
        "linked",
        click.BOOL,
        "",
        "Learn also from who rated what, whatever the ratings were.",
        {"als": False, "bayes": True},
    ),
    Parameter(
        "link_penalty",
        POSITIVE,
        "X",
        "Penalty of what is learned from who rated what.",
        {"als": 10.0, "bayes": 2.0},
    ),
    Parameter(
        "user_damping",
        NOT_NEGATIVE,
        "X",
        "Penalty of the users' biases.",
        {"bias": 5.0, "softimpute": 5.0},
    ),
    Parameter(
        "item_damping",
        NOT_NEGATIVE,
        "X",
        "Penalty of the items' biases.",
        {"bias": 5.0, "softimpute": 5.0},
    ),
    Parameter(
        "damping",
        NOT_NEGATIVE,
        "X",
        "Ratings without deviation added to each mean of an item, or of a user and a cluster.",
        {"popular": 10.0, "clusters": 15.0},
    ),
    Parameter("clusters", COUNT, "N", "Number of groups of items.", {"clusters": 40}),
    Parameter(
        "iterations",
        COUNT,
        "N",
        "Number of sweeps, at most.",
        {
            "als": 20,
            "bias": 50,
            "bayes": 30,
            "implicit-als": 15,
            "implicit-bpr": 100,
            "implicit-lmf": 30,
        },
    ),
    Parameter(
        "learning_rate",
        POSITIVE,
        "X",
        "Length of the gradient steps.",
        {"implicit-bpr": 0.01, "implicit-lmf": 1.0},
    ),
    Parameter("alpha", POSITIVE, "X", "Weight of a contact.", {"implicit-als": None}),
    Parameter(
        "weighting",
        click.Choice(["cosine", "tfidf", "bm25"]),
        "",
        "How the likeness of items is measured.",
        {"implicit-knn": "tfidf"},
    ),
    Parameter(
        "neighbors",
        COUNT,
        "N",
        "Similar items that count, of each item.",
        {"implicit-knn": 300},
    ),
    Parameter(
        "negatives",
        COUNT,
        "N",
        "Items drawn, for each that a user has, among those it has not.",
        {"implicit-lmf": 30},
    ),
    Parameter(
        "tol",
        NOT_NEGATIVE,
        "X",
        "Stop when a sweep changes less than this fraction (softimpute: at this duality gap; "
        "bayes: at this gain per rating).",
        {"als": 1e-4, "bias": 1e-4, "softimpute": 0.01, "bayes": 3e-4},
    ),
    Parameter(
        "inference",
        click.Choice(["variational", "gibbs"]),
        "",
        "How the posterior is found: fast, or by sampling.",
        {"bayes": "variational"},
    ),
    Parameter(
        "temperature",
        click.FloatRange(min=1),
        "X",
        "A rating counts as 1/X of one; above 1 the model is less sure of itself.",
        {"bayes": 1.3},
    ),
    Parameter("samples", COUNT, "N", "Sweeps that Gibbs sampling keeps.", {"bayes": 16}),
    Parameter("thinning", COUNT, "N", "Gibbs sampling keeps every Nth sweep.", {"bayes": 4}),
    Parameter(
        "burn_in",
        click.IntRange(min=0),
        "N",
        "First sweeps that Gibbs sampling drops.",
        {"bayes": 20},
    ),
    Parameter(
        "user_power",
        NOT_NEGATIVE,
        "X",
        "Exponent of the number of items by which users are weighted down.",
        {"spectral": 0.3},
    ),
    Parameter(
        "item_power",
        NOT_NEGATIVE,
        "X",
        "Exponent of the number of users by which items are weighted down.",
        {"spectral": 0.35},
    ),
    Parameter(
        "popularity",
        NOT_NEGATIVE,
        "X",
        "Exponent of the number of users by which recommended items are weighted up.",
        {"spectral": 0.25},
    ),
    Parameter(
        "sharpening",
        NOT_NEGATIVE,
        "X",
        "How much of what everybody likes is taken back.",
        {"spectral": 0.8},
    ),
    Parameter(
        "linear",
        click.BOOL,
        "",
        "Add the exact filter of items by items; without it ranking is faster, but worse.",
        {"spectral": True},
    ),
)


def applying(model: str, asked: Mapping[str, Any], **everywhere: Any) -> dict[str, Any]:
    """Return what was asked for and `model` has; `everywhere` are values of `ELSEWHERE`."""
    from recsys.models.registry import model_class

    known = set(model_class(model)().get_params())
    return {name: value for name, value in {**everywhere, **asked}.items() if name in known}


def check_applicable(models: Iterable[str], asked: Mapping[str, Any]) -> None:
    """Refuse an option that none of the models has.

    Raises
    ------
    CommandError
        The message names the models that have it.
    """
    chosen = list(dict.fromkeys(models))
    for parameter in PARAMETERS:
        if parameter.name in asked and not set(chosen) & set(parameter.defaults):
            names = " or ".join(f"--model {model}" for model in chosen)
            owners = ", ".join(parameter.defaults)
            raise CommandError(
                f"{parameter.option} does not apply to {names}; leave it out. It is for {owners}."
            )
