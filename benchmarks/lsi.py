"""Text search on Cranfield and CACM: retrieval quality, index time, update time, query latency.

Documents consist of title and abstract. A document is relevant to a query if its judgement has a
code above 0. Peers that are not installed (gensim, bm25s) are left out with a message.

Usage: RECSYS_DATASETS=... python benchmarks/lsi.py [--repeats N] [K ...]
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measuring import datasets, interleaved, machine, median, spread, table
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.preprocessing import normalize

from lowrank import kernels
from recsys.lsi import LSI

warnings.simplefilter("ignore")
RECALLS = np.linspace(0, 1, 11)


class Collected(NamedTuple):
    """A test collection; relevant[q] holds the places of the documents relevant to query q."""

    documents: list[str]
    queries: list[str]
    relevant: list[set[int]]


def cranfield(folder: Path) -> Collected:
    documents = [
        f"{fields.get('T', '')}\n{fields.get('W', '')}"
        for fields in records(folder / "cran.all.1400")
    ]
    queries = [fields["W"] for fields in records(folder / "cran.qry")]
    relevant: list[set[int]] = [set() for _ in queries]
    for line in (folder / "cranqrel").read_text().splitlines():
        query, document, code = map(int, line.split()[:3])
        if code > 0:
            relevant[query - 1].add(
                document - 1
            )  # both count from 1, in the order of the files
    return Collected(documents, queries, relevant)


def cacm(folder: Path) -> Collected:
    documents = [
        "\n".join(fields.get(name, "") for name in ("T", "W", "A", "K"))
        for fields in records(folder / "cacm.all")
    ]
    text = (folder / "topics.cacm.txt").read_text()
    queries = [
        each.strip() for each in re.findall(r"</DOCNO>(.*?)</DOC>", text, flags=re.S)
    ]
    relevant: list[set[int]] = [set() for _ in queries]
    for line in (folder / "qrels.cacm.txt").read_text().splitlines():
        query, _, document, _ = line.split()
        relevant[int(query) - 1].add(int(document.rpartition("-")[2]) - 1)
    kept = [place for place, wanted in enumerate(relevant) if wanted]
    return Collected(documents, [queries[q] for q in kept], [relevant[q] for q in kept])


def records(path: Path) -> list[dict[str, str]]:
    """Split a file of the SMART form: ``.I`` begins a record, ``.X`` a field of it."""
    found = []
    for record in re.split(
        r"^\.I .*\n", path.read_text(encoding="latin-1"), flags=re.M
    )[1:]:
        parts = re.split(r"^\.([A-Z])\s*\n", record, flags=re.M)
        fields: dict[str, str] = {}
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            fields[name] = fields.get(name, "") + text
        found.append(fields)
    return found


def measures(scores: np.ndarray, relevant: list[set[int]]) -> np.ndarray:
    """Return average precision, 11-point interpolated precision and P@10 of each query."""
    rows = []
    for query, wanted in enumerate(relevant):
        hits = np.isin(np.argsort(-scores[query], kind="stable"), list(wanted))
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        recall = np.cumsum(hits) / len(wanted)
        points = [
            precision[recall >= level - 1e-12].max(initial=0) for level in RECALLS
        ]
        rows.append(
            (precision[hits].sum() / len(wanted), np.mean(points), hits[:10].mean())
        )
    return np.array(rows)


def cosines(queries: Any, documents: Any) -> np.ndarray:
    product = normalize(queries) @ normalize(documents).T
    return product.toarray() if hasattr(product, "toarray") else np.asarray(product)


def lsi_scores(lsi: LSI, queries: list[str]) -> np.ndarray:
    return cosines(lsi.transform(queries), lsi.document_vectors())


def search_scores(lsi: LSI, data: Collected, method: str) -> np.ndarray:
    """Return scores in the order of the results of a search."""
    n = len(data.documents)
    found = lsi.query(data.queries, n, method=method, labels=range(len(data.queries)))
    scores = np.full((len(data.queries), n), -np.inf)
    scores[found["query"], found["document"]] = -found["rank"].to_numpy()
    return scores


def stemmed(texts: list[str]) -> list[list[str]]:
    """Return the words of texts as a user of bm25s would have them, without stop words, stemmed."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(
        texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
    )


def stemmed_bm25(data: Collected) -> np.ndarray:
    import bm25s

    model = bm25s.BM25()
    model.index(stemmed(data.documents), show_progress=False)
    return np.array([model.get_scores(words) for words in stemmed(data.queries)])


def vector_space(data: Collected, **settings: Any) -> np.ndarray:
    vectorizer = TfidfVectorizer(**settings)
    documents = vectorizer.fit_transform(data.documents)
    return cosines(vectorizer.transform(data.queries), documents)


def sklearn_index(documents: list[str], k: int) -> tuple[Any, Any, np.ndarray]:
    vectorizer, svd = TfidfVectorizer(), TruncatedSVD(k, random_state=0)
    return vectorizer, svd, svd.fit_transform(vectorizer.fit_transform(documents))


def sklearn_pipeline(data: Collected, k: int) -> np.ndarray:
    vectorizer, svd, vectors = sklearn_index(data.documents, k)
    return cosines(svd.transform(vectorizer.transform(data.queries)), vectors)


def sklearn_same_weights(lsi: LSI, queries: Any, k: int) -> np.ndarray:
    svd = TruncatedSVD(k, random_state=0)
    vectors = svd.fit_transform(lsi.document_weights())
    return cosines(svd.transform(queries), vectors)


def gensim_index(
    documents: list[str], k: int, power_iters: int = 2
) -> tuple[Any, Any, Any, tuple[Any, np.ndarray]]:
    """Index texts with gensim, tokenised by the same function as ours."""
    from gensim.corpora import Dictionary
    from gensim.models import LsiModel, TfidfModel

    analyze = CountVectorizer().build_analyzer()
    texts = [analyze(text) for text in documents]
    words = Dictionary(texts)
    bags = [words.doc2bow(text) for text in texts]
    weights = TfidfModel(bags)
    model = LsiModel(
        weights[bags],
        id2word=words,
        num_topics=k,
        random_seed=0,
        power_iters=power_iters,
    )
    return analyze, words, weights, (model, gensim_vectors(model, weights[bags]))


def gensim_vectors(model: Any, corpus: Any) -> np.ndarray:
    from gensim.matutils import corpus2dense

    return corpus2dense(model[corpus], num_terms=model.num_topics).T


def gensim_pipeline(data: Collected, k: int) -> np.ndarray:
    analyze, words, weights, (model, vectors) = gensim_index(data.documents, k)
    bags = [words.doc2bow(analyze(text)) for text in data.queries]
    return cosines(gensim_vectors(model, weights[bags]), vectors)


def gensim_same_weights(lsi: LSI, queries: Any, k: int) -> np.ndarray:
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LsiModel

    corpus = Sparse2Corpus(lsi.document_weights().tocsr(), documents_columns=False)
    words = {place: str(place) for place in range(len(lsi.terms_))}
    model = LsiModel(corpus, id2word=words, num_topics=k, random_seed=0)
    query_corpus = Sparse2Corpus(queries.tocsr(), documents_columns=False)
    return cosines(gensim_vectors(model, query_corpus), gensim_vectors(model, corpus))


def bm25(data: Collected) -> np.ndarray:
    import bm25s

    model = bm25s.BM25()
    analyze = CountVectorizer().build_analyzer()
    model.index([analyze(text) for text in data.documents], show_progress=False)
    return np.array([model.get_scores(analyze(text)) for text in data.queries])


def has(module: str) -> bool:
    from importlib.util import find_spec

    if find_spec(module) is None:
        print(f"{module} is not installed and left out.")
        return False
    return True


def quality(data: Collected, ranks: list[int]) -> str:
    runs: dict[tuple[str, str], Callable[[], np.ndarray]] = {
        ("tf-idf cosine (scikit-learn)", ""): lambda: vector_space(data),
        ("tf-idf cosine, sublinear", ""): lambda: vector_space(data, sublinear_tf=True),
    }
    if has("bm25s"):
        runs["BM25 (bm25s)", ""] = lambda: bm25(data)
        runs["BM25 (bm25s), stop words and stems", ""] = lambda: stemmed_bm25(data)
    with_gensim = has("gensim")
    base = LSI(ranks[0]).fit(data.documents)
    queries = base._encoder.encode(data.queries).rows
    for k in ranks:
        runs["LSI, tfidf", str(k)] = lambda k=k: lsi_scores(
            LSI(k).fit(data.documents), data.queries
        )
        runs["TruncatedSVD, same weights", str(k)] = lambda k=k: sklearn_same_weights(
            base, queries, k
        )
        runs["TfidfVectorizer + TruncatedSVD", str(k)] = lambda k=k: sklearn_pipeline(
            data, k
        )
        if with_gensim:
            runs["gensim LsiModel, same weights", str(k)] = lambda k=k: (
                gensim_same_weights(base, queries, k)
            )
            runs["gensim TfidfModel + LsiModel", str(k)] = lambda k=k: gensim_pipeline(
                data, k
            )
    default = LSI().fit(data.documents)
    runs["LSI, log-entropy", str(default.n_components_)] = lambda: lsi_scores(
        LSI(weighting="log-entropy").fit(data.documents), data.queries
    )
    for method in ("bm25", "lsi", "hybrid"):
        label = "hybrid, the default" if method == "hybrid" else f"method={method}"
        k = "" if method == "bm25" else str(default.n_components_)
        runs[label, k] = lambda method=method: search_scores(default, data, method)
    rows, plain = [], None
    for (name, k), run in runs.items():
        found = measures(run(), data.relevant)
        mean = found.mean(axis=0)
        plain = mean[0] if plain is None else plain
        halves = [f"{found[start::2, 0].mean():.4f}" for start in (0, 1)]
        rows.append(
            [name, k, *(f"{x:.4f}" for x in mean), *halves, f"{mean[0] / plain:.2f}"]
        )
    headers = [
        "method",
        "k",
        "MAP",
        "11-point",
        "P@10",
        "MAP odd",
        "MAP even",
        "of tf-idf",
    ]
    return table(headers, rows)


def index_times(data: Collected, k: int, repeats: int) -> str:
    runs: dict[str, Callable[[], object]] = {
        "LSI": lambda: LSI(k).fit(data.documents),
        "TfidfVectorizer + TruncatedSVD": lambda: sklearn_index(data.documents, k),
    }
    if has("gensim"):
        runs["gensim TfidfModel + LsiModel"] = lambda: gensim_index(data.documents, k)
        # Its default is quick and rough; this comes about as close to the exact one as ours.
        runs["the same, power_iters=20"] = lambda: gensim_index(data.documents, k, 20)
    times = interleaved(runs, repeats)
    ours = median(times["LSI"])
    rows = [
        [name, median(each), spread(each), median(each) / ours]
        for name, each in times.items()
    ]
    return table(["texts to index", "seconds", "min-max", "times ours"], rows)


def updating(data: Collected, k: int, repeats: int) -> str:
    """Add the last 10% of the documents to an index of the others."""
    first = len(data.documents) * 9 // 10
    old, new = data.documents[:first], data.documents[first:]
    base = LSI(k).fit(old)
    everything = base._encoder.encode(data.documents).rows
    made: dict[str, Any] = {}

    def run(name: str, work: Callable[[], Any]) -> Callable[[], None]:
        return lambda: made.__setitem__(name, work())

    def added(method: str) -> LSI:
        lsi = LSI(k)
        lsi.__dict__.update(base.__dict__)
        lsi.add_documents(new, method=method)
        return lsi

    def fresh() -> LSI:
        return LSI(k, weighting="count").fit(
            everything, vocabulary=base.terms_.values.to_list()
        )

    runs = {
        "fresh SVD": run("fresh SVD", fresh),
        "update": run("update", lambda: added("update")),
        "fold-in": run("fold-in", lambda: added("fold-in")),
    }
    times = interleaved(runs, repeats)
    exact = made["fresh SVD"]
    whole = float(np.sum(exact.singular_values_.astype(float) ** 2))
    queries = base._encoder.encode(data.queries).rows
    rows = []
    for name, lsi in made.items():
        # Terms of the new documents alone come last, and are zero in all directions.
        components = lsi.components_[:, : len(base.terms_)]
        cosine = np.linalg.norm(exact.components_ @ components.T, axis=1)
        energy = float(np.sum((everything @ components.T) ** 2)) / whole
        scores = cosines(queries @ components.T, lsi.document_vectors())
        quality = measures(scores, data.relevant)[:, 0].mean()
        loss = lsi.training_["orthogonality_loss"]
        rows.append(
            [
                name,
                median(times[name]),
                spread(times[name]),
                median(times["fresh SVD"]) / median(times[name]),
                f"{energy:.4f}",
                f"{cosine[: k // 4].min():.4f}",
                f"{quality:.4f}",
                f"{loss:.1e}",
            ]
        )
    share = f"least cosine of the first {k // 4}"
    headers = ["method", "seconds", "min-max", "times faster", "energy kept", share]
    headers += ["MAP", "loss of orth."]
    return table(headers, rows)


def latency(data: Collected, repeats: int, copies: int) -> str:
    """Time one query, words included, next to bm25s on the same documents."""
    texts = [f"{text} copy{i}" for i in range(copies) for text in data.documents]
    lsi = LSI().fit(texts)
    runs: dict[str, Callable[[str], object]] = {
        f"query, {method}": lambda query, method=method: lsi.query(query, method=method)
        for method in ("hybrid", "bm25", "lsi")
    }
    if has("bm25s"):
        import bm25s

        model = bm25s.BM25()
        model.index(stemmed(texts), show_progress=False)
        runs["bm25s"] = lambda query: model.retrieve(
            stemmed([query]), k=10, show_progress=False
        )
    queries = data.queries[:50]
    times = {name: np.empty((repeats, len(queries))) for name in runs}
    for repeat in range(repeats):
        for number, query in enumerate(queries):
            for name, run in runs.items():
                start = time.perf_counter()
                run(query)
                times[name][repeat, number] = time.perf_counter() - start
    # Of each query the least time, which other work on the machine changes little.
    least = {
        name: 1e6 * float(np.median(each.min(axis=0))) for name, each in times.items()
    }
    middle = {name: 1e6 * float(np.median(each)) for name, each in times.items()}
    peer = "bm25s" if "bm25s" in runs else "query, bm25"
    rows = [
        [
            name,
            middle[name],
            middle[name] / middle[peer],
            least[name],
            least[name] / least[peer],
        ]
        for name in runs
    ]
    headers = [f"{len(texts):,} documents", "median, microseconds", "times bm25s"]
    return table([*headers, "median of each query's least", "times bm25s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "ranks", nargs="*", type=int, default=[50, 100, 200, 300], metavar="K"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--copies", type=int, default=72, help="of all documents")
    arguments = parser.parse_args()
    data = cranfield(datasets() / "cranfield")
    print(f"{machine()}; kernels: {kernels.backend()}\n")
    print("Cranfield\n", quality(data, arguments.ranks), "\n", sep="\n")
    print("CACM\n", quality(cacm(datasets() / "cacm"), arguments.ranks), "\n", sep="\n")
    k = 200 if 200 in arguments.ranks else arguments.ranks[-1]
    print(index_times(data, k, arguments.repeats), "\n")
    print(updating(data, k, arguments.repeats), "\n")
    print(latency(data, arguments.repeats, 1), "\n")
    print(latency(data, arguments.repeats, arguments.copies))


if __name__ == "__main__":
    main()
