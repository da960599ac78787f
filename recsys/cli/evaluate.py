"""`recsys evaluate`: models side by side on held-out ratings."""

from __future__ import annotations

import click

from recsys.cli.evaluating import Question, document, evaluation_options, run, without_empty
from recsys.cli.options import EngineOptions, command, engine_options, output_options
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
        "recsys evaluate s3a://lake/model --test s3a://lake/test --engine spark",
    ],
)
@evaluation_options
@output_options
@engine_options
def evaluate(question: Question, output: Output, engine: EngineOptions) -> None:
    """Compare models on held-out ratings.

    Takes RATINGS, of which a part is held out (the newest ones, where times are known); or a folder
    with a train and a test file; or both --train and --test. A parameter goes to each of the
    models that has it. RMSE and MAE are over the held-out ratings. Ranking metrics are over the
    users that have any: each is recommended N of all items not rated in the training part, and the
    held-out ones count as relevant. JSON holds the definitions, 95% intervals over users, tests of
    the differences between models, and a fingerprint of the data.

    With --engine spark, RATINGS is a model that `recsys fit --engine spark` wrote, and is measured
    on --test on the cluster.
    """
    if engine.on_spark:
        _evaluate_on_spark(question, engine, output)
        return
    models, found = run(question)
    form = output.resolved_format
    if form == "json":
        output.write_document(document("evaluate", models, found), found.table)
    elif form == "table":
        from recsys.cli.evaluation_table import legend, tables

        output.write(tables(found), remark=legend(found))
    else:
        output.write(without_empty(found.table))


def _evaluate_on_spark(question: Question, engine: EngineOptions, output: Output) -> None:
    from recsys.cli.spark import evaluate_on_spark

    asked = question.asked
    others = (asked.train, asked.model, asked.candidates, asked.per_user, asked.report)
    plain = not any(others) and not question.parameters and len(asked.n) == 1
    if question.ratings is None or asked.test is None or not plain:
        raise click.UsageError(
            "With --engine spark, say MODEL --test FILE; of the other choices there is one -n."
        )
    evaluate_on_spark(question.ratings, asked.test, asked.n[0], engine, question.reader, output)
