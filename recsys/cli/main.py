"""The `recsys` group and the entry point of the console script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from recsys.cli import errors
from recsys.cli.errors import State
from recsys.cli.group import PREFIX, Group, Verb
from recsys.cli.options import common_options

COMPLETION_VARIABLE = "_RECSYS_COMPLETE"

# Short help of each verb, repeated here so that help and completion need not import it; a test
# compares each line with the help of the verb.
VERBS = {
    "fit": Verb("recsys.cli.fit:fit", "Fit a model to ratings and save it."),
    "recommend": Verb("recsys.cli.recommend:recommend", "Recommend items to users."),
    "similar": Verb(
        "recsys.cli.recommend:similar",
        "List similar items or similar users, or what comes next after an item.",
    ),
    "together": Verb(
        "recsys.cli.together:together", "List items that are bought together."
    ),
    "predict": Verb(
        "recsys.cli.recommend:predict", "Predict the ratings of user-item pairs."
    ),
    "impute": Verb("recsys.cli.recommend:impute", "Predict all missing ratings."),
    "explain": Verb(
        "recsys.cli.recommend:explain",
        "Explain a score by the ratings and features behind it.",
    ),
    "topics": Verb(
        "recsys.cli.recommend:topics", "List the items of each topic of a model."
    ),
    "vectors": Verb(
        "recsys.cli.vectors:vectors",
        "Write the vectors of a model for a search in a database.",
    ),
    "update": Verb(
        "recsys.cli.fit:update",
        "Add new ratings to a model, remove old ones or users, or replace the tables.",
    ),
    "monitor": Verb(
        "recsys.cli.versions:monitor",
        "Compare new ratings with the ratings of a saved model.",
    ),
    "versions": Verb(
        "recsys.cli.versions:versions",
        "List saved models, and choose the one that is served.",
    ),
    "split": Verb(
        "recsys.cli.split:split", "Split ratings into training and test files."
    ),
    "evaluate": Verb(
        "recsys.cli.evaluate:evaluate", "Evaluate models on held-out ratings."
    ),
    "compare": Verb(
        "recsys.cli.evaluate:compare", "Test whether models differ on held-out ratings."
    ),
    "tune": Verb("recsys.cli.tune:tune", "Search for better parameters of a model."),
    "models": Verb(
        "recsys.cli.info:models", "List models, or the parameters of a model."
    ),
    "scree": Verb("recsys.cli.data:scree", "Show the singular values of the ratings."),
    "explore": Verb(
        "recsys.cli.serve:explore", "Write a page to explore a model, as one file."
    ),
    "lsi": Verb(
        "recsys.cli.lsi:group",
        "Search documents by their words and their meaning.",
    ),
    "serve": Verb(
        "recsys.cli.serve:serve", "Serve a model over HTTP, with a page to explore it."
    ),
    "data": Verb(
        "recsys.cli.data:data", "Inspect ratings files, and copy sample data."
    ),
    "info": Verb(
        "recsys.cli.info:info", "Show versions and settings, or a saved model."
    ),
    "completion": Verb(
        "recsys.cli.info:completion", "Print a shell completion script."
    ),
}


class _Root(Group):
    """Root group, which reports every error in one line, with an exit code."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str = "recsys",
        **extra: Any,
    ) -> NoReturn:
        """Run the command line `args` and exit; unlike Click, also on a closed pipe or Ctrl-C."""
        words = sys.argv[1:] if args is None else list(args)
        state = State(words=tuple(words))

        def command() -> None:
            if instruction := os.environ.get(COMPLETION_VARIABLE):
                from click.shell_completion import shell_complete

                code = shell_complete(
                    self, {}, "recsys", COMPLETION_VARIABLE, instruction
                )
                raise click.exceptions.Exit(code)
            extra.setdefault("auto_envvar_prefix", PREFIX)
            with self.make_context("recsys", words, obj=state, **extra) as context:
                self.invoke(context)

        sys.exit(errors.guarded(command, state))


@click.group(
    name="recsys",
    cls=_Root,
    commands={**VERBS},
    examples=[
        "recsys data sample",
        "recsys recommend ratings.csv --user 42",
        "recsys fit ratings.csv --out model",
        "recsys recommend model --user 42 -n 5",
        "recsys evaluate ratings.csv",
        "recsys lsi index articles/ --out index",
    ],
)
@click.version_option(package_name="lowrank-recsys", message="recsys %(version)s")
@common_options
def cli() -> None:
    """Recommendations from ratings, and search in documents by meaning.

    Data are written to standard output, messages to standard error. Options can also be set in the
    environment (RECSYS_THREADS=2, or RECSYS_FIT_THREADS=2 for one verb) and in recsys.toml in the
    current directory; `recsys info` shows the settings in effect.
    """


def main() -> NoReturn:
    """Run the console script `recsys`."""
    errors.unwind_when_stopped()
    cli.main()
