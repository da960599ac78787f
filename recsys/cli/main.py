"""The `recsys` group and the entry point of the console script."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from recsys.cli import errors
from recsys.cli.group import Group, State, Verb
from recsys.cli.options import common_options

__all__ = ["COMPLETION_VARIABLE", "cli", "main"]

COMPLETION_VARIABLE = "_RECSYS_COMPLETE"

# Known without importing the verbs, so that help and completion stay fast; a test compares each
# line with the verb's own help.
VERBS = {
    "fit": Verb("recsys.cli.fit:fit", "Fit a model to ratings and save it."),
    "recommend": Verb("recsys.cli.recommend:recommend", "Recommend items to users."),
    "similar": Verb(
        "recsys.cli.similar:similar", "List the items most like an item, or users like a user."
    ),
    "predict": Verb("recsys.cli.predict:predict", "Predict the ratings of user-item pairs."),
    "impute": Verb("recsys.cli.impute:impute", "Predict all the ratings that are missing."),
    "explain": Verb("recsys.cli.explain:explain", "Show what a score is made of."),
    "update": Verb("recsys.cli.update:update", "Add new ratings to a model."),
    "split": Verb(
        "recsys.cli.split:split", "Split ratings into files to learn from and to test on."
    ),
    "evaluate": Verb("recsys.cli.evaluate:evaluate", "Compare models on held-out ratings."),
    "compare": Verb(
        "recsys.cli.evaluate:compare", "Test whether models differ on held-out ratings."
    ),
    "tune": Verb("recsys.cli.tune:tune", "Find good parameters of a model."),
    "scree": Verb("recsys.cli.scree:scree", "Show the singular values of the ratings."),
    "lsi": Verb("recsys.cli.lsi:lsi", "Find documents by meaning: latent semantic indexing."),
    "data": Verb("recsys.cli.data:data", "Look into data files, and get sample data."),
    "info": Verb("recsys.cli.info:info", "Show versions and settings, or a saved model."),
    "completion": Verb("recsys.cli.completion:completion", "Print a shell completion script."),
}


class _Root(Group):
    """The outermost group: every error ends here, as one line and an exit code."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str = "recsys", **extra: Any
    ) -> NoReturn:
        """Run the command line `args` and exit."""
        sys.exit(self.run(args, **extra))

    def run(self, args: Sequence[str] | None = None, **extra: Any) -> int:
        """Run the command line `args`; the exit code."""
        words = sys.argv[1:] if args is None else list(args)
        state = State(words=tuple(words))

        # Not click's own main: it answers a closed pipe and Ctrl-C in another way than ours.
        def command() -> None:
            _complete_if_asked(self)
            with self.make_context("recsys", words, obj=state, **extra) as context:
                self.invoke(context)

        return errors.guarded(command, state)


def _complete_if_asked(group: Group) -> None:
    """Answer the completion script of a shell, and leave."""
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        code = shell_complete(group, {}, "recsys", COMPLETION_VARIABLE, instruction)
        raise click.exceptions.Exit(code)


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    import recsys

    click.echo(f"recsys {recsys.__version__}")
    ctx.exit()


@click.group(
    name="recsys",
    cls=_Root,
    verbs=VERBS,
    examples=[
        "recsys data sample",
        "recsys recommend ratings.csv --user 42",
        "recsys fit ratings.csv --out model",
        "recsys recommend model --user 42 -n 5",
        "recsys evaluate ratings.csv",
        "recsys lsi index articles/ --out index",
    ],
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@common_options
def cli() -> None:
    """Recommendations from a ratings file, and texts found by meaning.

    Data go to standard output, everything else to standard error. Options may also be set in the
    environment (RECSYS_THREADS=2, or RECSYS_FIT_THREADS=2 for one verb) and in recsys.toml in the
    current directory; `recsys info` shows what is set and where.
    """


def main() -> NoReturn:
    """Run the console script `recsys`.

    A command is a short program: it collects garbage rarely and leaves without tearing the
    interpreter down, which together save a third of the time of importing polars.
    """
    gc.set_threshold(200_000, 20, 100)
    errors.clean_up_when_terminated()
    code = cli.run()
    os._exit(code)
