"""Retrieval on the Cranfield collection, and what an update of its index is worth."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from recsys.lsi import LSI

pytestmark = pytest.mark.skipif(
    "RECSYS_DATASETS" not in os.environ, reason="RECSYS_DATASETS names no folder"
)


def records(name):
    text = (Path(os.environ["RECSYS_DATASETS"]) / "cranfield" / name).read_text()
    for record in re.split(r"^\.I .*\n", text, flags=re.M)[1:]:
        parts = re.split(r"^\.([A-Z])\s*\n", record, flags=re.M)
        yield dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def documents():
    return [
        f"{fields.get('T', '')}\n{fields.get('W', '')}"
        for fields in records("cran.all.1400")
    ]


@pytest.fixture(scope="module")
def queries():
    return [fields["W"] for fields in records("cran.qry")]


@pytest.fixture(scope="module")
def relevant():
    found = {}
    path = Path(os.environ["RECSYS_DATASETS"]) / "cranfield" / "cranqrel"
    for line in path.read_text().splitlines():
        query, document = map(int, line.split()[:2])
        found.setdefault(query - 1, set()).add(document - 1)
    return found


@pytest.fixture(scope="module")
def fitted(documents):
    return LSI().fit(documents)


def mean_average_precision(scores, relevant):
    total = 0.0
    for query, wanted in relevant.items():
        hits = np.isin(np.argsort(-scores[query], kind="stable"), list(wanted))
        total += np.sum((np.cumsum(hits) / np.arange(1, hits.size + 1))[hits]) / len(
            wanted
        )
    return total / len(relevant)


def lsi_scores(lsi, queries):
    asked, documents = lsi.transform(queries), lsi.document_vectors()
    lengths = np.maximum(np.linalg.norm(documents, axis=1), 1e-12)
    return asked @ documents.T / lengths


def test_lsi_is_a_tenth_above_plain_tfidf(documents, queries, relevant, fitted):
    vectorizer = TfidfVectorizer()
    matrix = vectorizer.fit_transform(documents)
    plain = (vectorizer.transform(queries) @ matrix.T).toarray()
    ours = mean_average_precision(lsi_scores(fitted, queries), relevant)
    assert fitted.n_components_ == 75
    assert ours > 0.44
    assert ours >= 1.1 * mean_average_precision(plain, relevant)


@pytest.mark.filterwarnings("ignore::recsys.lsi.UnknownTermWarning")
def test_words_and_meaning_are_above_either(documents, queries, relevant, fitted):
    found = {}
    for method in ("hybrid", "lsi", "bm25"):
        answers = fitted.query(
            queries, len(documents), method=method, labels=range(len(queries))
        )
        scores = np.full((len(queries), len(documents)), -np.inf)
        scores[answers["query"], answers["document"]] = -answers["rank"].to_numpy()
        found[method] = mean_average_precision(scores, relevant)
    assert found["hybrid"] >= 1.05 * found["lsi"]
    assert found["hybrid"] >= 1.1 * found["bm25"]


def test_an_update_by_a_tenth_stays_close_to_a_fresh_decomposition(documents):
    """Stated tolerance: 99% of the energy, and the first quarter of the directions to 0.98."""
    first = len(documents) * 9 // 10
    lsi = LSI(200).fit(documents[:first])
    lsi.add_documents(documents[first:], method="update")
    rows = lsi.document_weights()
    words = lsi.terms_.values.to_list()
    fresh = LSI(200, "count").fit(rows, vocabulary=words)
    energy = np.sum(lsi.singular_values_**2) / np.sum(fresh.singular_values_**2)
    assert 0.99 < energy <= 1 + 1e-6
    cosines = np.linalg.norm(fresh.components_[:50] @ lsi.components_.T, axis=1)
    assert cosines.min() > 0.98
    assert lsi.training_["orthogonality_loss"] < 1e-5
