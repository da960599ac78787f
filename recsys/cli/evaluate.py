"""`recsys evaluate`: models side by side on held-out ratings."""

from __future__ import annotations

from recsys.cli.evaluating import Question, document, evaluation_options, run, without_empty
from recsys.cli.options import command, output_options
from recsys.cli.output import Output

__all__ = ["evaluate"]


@command(
    "evaluate",
    examples=[
        "recsys evaluate ratings.csv",
        "recsys evaluate ratings.csv --model als --model popular -n 5 -n 20 --json",
        "recsys evaluate ratings.csv --model als --factors 64 --regularization 0.8",
        "recsys evaluate ratings.csv --method k-fold --per-user users.parquet",
        "recsys evaluate --train train.csv --test test.csv",
    ],
)
@evaluation_options
@output_options
def evaluate(question: Question, output: Output) -> None:
    """Compare models on held-out ratings.

    Takes RATINGS, of which a part is held out (the newest ones, where times are known); or a folder
    with a train and a test file; or both --train and --test. A parameter goes to each of the
    models that has it. RMSE and MAE are over the held-out ratings. Ranking metrics are over the
    users that have any: each is recommended N of all items not rated in the training part, and the
    held-out ones count as relevant. JSON holds the definitions, 95% intervals over users, tests of
    the differences between models, and a fingerprint of the data.
    """
    models, found = run(question)
    form = output.resolved_format
    if form == "json":
        output.write_document(document("evaluate", models, found), found.table)
    elif form == "table":
        from recsys.cli.evaluation_table import legend, tables

        output.write(tables(found), remark=legend(found))
    else:
        output.write(without_empty(found.table))
