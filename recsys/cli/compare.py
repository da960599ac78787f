"""`recsys compare`: the differences between models on held-out ratings."""

from __future__ import annotations

import click

from recsys.cli.evaluating import Question, document, evaluation_options, run
from recsys.cli.options import command, output_options
from recsys.cli.output import Output

__all__ = ["compare"]


@command(
    "compare",
    examples=[
        "recsys compare ratings.csv --model als --model popular",
        "recsys compare parts --model als --model bayes --model bias -n 5 -n 20 --json",
    ],
)
@evaluation_options
@output_options
def compare(question: Question, output: Output) -> None:
    """Test whether models differ on held-out ratings.

    Takes what `recsys evaluate` takes. One row per metric and pair of models: the difference (model
    minus other), its 95% interval by the bootstrap over users, the p value of a paired sign-flip
    test over users, and the same adjusted by Holm's method for the number of pairs of models.
    """
    models, found = run(question, at_least=2)
    if found.comparisons.is_empty():
        raise click.UsageError(
            "A test needs a metric that two models have, of two users or more; there is none."
        )
    form = output.resolved_format
    if form == "json":
        output.write_document(document("compare", models, found), found.comparisons)
    elif form == "table":
        from recsys.cli.evaluation_table import differences, legend_of_differences

        output.write(differences(found), remark=legend_of_differences(found))
    else:
        output.write(found.comparisons)
