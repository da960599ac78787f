"""Retrieval quality of an index on judged queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from lowrank.kernels.arrays import Int64s
from recsys.errors import DataError
from recsys.evaluation.metrics import METRICS
from recsys.evaluation.results import (
    Evaluation,
    Measurement,
    fold_values,
    summarize,
)
from recsys.evaluation.settings import Settings, SplitInfo
from recsys.evaluation.staleness import stale_values
from recsys.lsi.search import METHODS
from recsys.messages import counted
from recsys.readers.judgements import Judgements, places_of

if TYPE_CHECKING:
    from recsys.lsi.index import Index

_DEPTH = 1000  # number of documents to retrieve for each query
_NS = (10, 100, _DEPTH)
_SHOWN = ("map@1000", "ndcg@10", "precision@10", "recall@100", "mrr@1000")
_KINDS = ("map", "ndcg", "precision", "recall", "mrr")
_MAP = replace(
    METRICS["map"],
    definition="sum of the precision at the rank of each relevant document found, divided by the "
    "number of relevant documents",
)


class Judged(NamedTuple):
    """Ids and texts of queries with relevant documents, and the places of these documents.

    `n_relevant` also counts the documents that are not in the index. `decision` describes how ids
    were matched.
    """

    labels: list[Any]
    texts: list[str]
    relevant: list[Int64s]
    n_relevant: Int64s
    decision: str


def _judged(
    lsi: Index,
    labels: Sequence[Any],
    texts: Sequence[str],
    judgements: Judgements,
) -> Judged:
    """Match queries, judgements and the documents of an index."""
    rows = judgements.relevant()
    ids = lsi.documents_.ids.values
    if not len(rows):
        raise DataError("The judgements have no relevant document.")
    judged = judgements.frame
    # Collections number their queries by id or by position.
    queries, of_queries = places_of(
        rows["query"], labels, judged=judged["query"], in_order=True
    )
    documents, of_documents = places_of(
        rows["document"], ids, judged=judged["document"]
    )
    if not ((queries >= 0) & (documents >= 0)).any():
        raise DataError(
            "No judgement matches both a query and a document; the judgements have ids such as "
            f"{rows['query'][0]!r} and {rows['document'][0]!r}, the queries such as "
            f"{str(labels[0])!r}, the documents such as {str(ids[0])!r}."
        )
    # Matching is a guess, so say what it was.
    remarks = []
    if of_queries:
        remarks.append(f"queries matched {of_queries}")
    if of_documents:
        remarks.append(f"documents matched {of_documents}")
    n_missing = int((documents[queries >= 0] < 0).sum())
    if n_missing:
        missing = counted(n_missing, "relevant document")
        remarks.append(f"{missing} outside of the index, counted as not found")
    chosen = np.unique(queries[queries >= 0])
    remarks.append(
        f"{len(chosen):,} of {len(labels):,} queries have relevant documents"
    )
    relevant = []
    n_relevant = []
    for query in chosen:
        # A document may be judged several times, but counts once.
        indices = documents[queries == query]
        inside = np.unique(indices[indices >= 0])
        n_outside = int((indices < 0).sum())
        relevant.append(inside)
        n_relevant.append(len(inside) + n_outside)
    return Judged(
        labels=[labels[query] for query in chosen],
        texts=[texts[query] for query in chosen],
        relevant=relevant,
        n_relevant=np.array(n_relevant, np.int64),
        decision=f"{judgements.decision}; {', '.join(remarks)}",
    )


def evaluate_search(
    lsi: Index,
    labels: Sequence[Any],
    texts: Sequence[str],
    judgements: Judgements,
    *,
    methods: Sequence[str] = METHODS,
) -> Evaluation:
    """Measure how well methods of search find the relevant documents of judged queries.

    The metrics are MAP over the 1,000 best documents, NDCG and precision at 10, recall at 100, and
    MRR, with gains of 0 and 1, as trec_eval computes them: all relevant documents count, also those
    that are not in the index. Their intervals and the tests between methods are those of
    recommendations, with queries in place of users and methods in place of models. `labels` and
    `texts` are ids and texts of the queries; for the relevant documents see `Judgements.relevant`.
    """
    judged = _judged(lsi, labels, texts, judgements)
    n_judged = int(judged.n_relevant.sum())
    counts = {
        "queries": len(judged.labels),
        "judgements": n_judged,
        "documents": len(lsi.documents_),
        "test_ratings": n_judged,
        "users_evaluated": len(judged.labels),
    }
    measured = (_MAP, *(METRICS[kind] for kind in _KINDS[1:]))
    # Intervals and tests are those of models, with methods in their place.
    settings = Settings(
        _NS, None, None, "keep", resamples=1000, confidence=0.95, random_state=0
    )
    runs = {method: _measure(lsi, judged, method) for method in methods}
    frames: dict[str, Any] = {**summarize(runs, measured, settings)}
    evaluation = Evaluation(
        **frames,
        folds=fold_values(
            {method: [run] for method, run in runs.items()}, measured, settings
        ),
        staleness=stale_values({}, (), settings),
        parameters={method: {} for method in runs},
        steps=dict.fromkeys(runs, ()),
        measured={metric.name: metric for metric in measured},
        settings=settings,
        splits=(SplitInfo("judgements", {}, judged.decision, counts),),
        counts=counts,
        fingerprint="",
    )
    # Each metric exists at three lengths, of which one is usual.
    is_shown = pl.col("metric").is_in(_SHOWN)
    names = [f"{kind}@{n}" for kind in _KINDS for n in _NS]
    hidden = [name for name in names if name not in _SHOWN]
    columns = ["model", *_SHOWN, "recommend_seconds", "users"]
    table = evaluation.table.select(columns).rename(
        {"recommend_seconds": "search_seconds", "users": "queries"}
    )
    return replace(
        evaluation,
        table=table,
        metrics=evaluation.metrics.filter(is_shown),
        comparisons=evaluation.comparisons.filter(is_shown),
        per_user=evaluation.per_user.drop(hidden, "ratings"),
    )


def _measure(
    lsi: Index,
    judged: Judged,
    method: str,
) -> Measurement:
    """Search for all queries, and measure each."""
    # Exclude from the time what a first search reads.
    lsi.query(judged.texts, 1, method=method)
    start = time.perf_counter()
    numbers = [*range(len(judged.texts))]
    results = lsi.query(judged.texts, _DEPTH, method=method, labels=numbers)
    seconds = time.perf_counter() - start
    # Shorter lists are padded, which is never relevant.
    lists = np.full((len(numbers), _DEPTH), -1, np.int64)
    rows = results["query"].to_numpy()
    columns_of_ranks = results["rank"].to_numpy() - 1
    lists[rows, columns_of_ranks] = lsi.documents_.ids.index(results["document"])
    hits = np.zeros(lists.shape, np.bool_)
    for row, relevant in enumerate(judged.relevant):
        hits[row] = np.isin(lists[row], relevant) & (lists[row] >= 0)
    n_relevant = judged.n_relevant
    columns: dict[str, Any] = {
        "user": [str(label) for label in judged.labels],
        "relevant": n_relevant,
        "ratings": n_relevant,
    }
    for kind in _KINDS:
        for n in _NS:
            inputs = {"hits": hits[:, :n], "n_relevant": n_relevant}
            columns[f"{kind}@{n}"] = METRICS[kind]._of_users(inputs)
        if kind == "map":  # of all relevant documents, not of at most n
            columns[f"map@{_DEPTH}"] *= np.minimum(_DEPTH, n_relevant) / n_relevant
    return Measurement(pl.DataFrame(columns), {}, None, (), 0.0, seconds)
