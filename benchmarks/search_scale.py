"""Index and search generated documents: seconds, memory, latency, and time of an addition.

Each document has a topic; half of its words are from the topic. Word frequencies follow Zipf's law.
Queries are a few words of a document.

Usage: python benchmarks/search_scale.py [--documents N] [--dimensions K] [--index DIRECTORY]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from measuring import machine, median, table

from lowrank import kernels
from recsys.lsi import LSI, DocumentBatch, search

WORDS = 150_000
TOPICS = 2_000
LENGTH = 60
BATCH = 5_000


class Texts:
    """Generated texts, the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        drawn = letters[rng.integers(0, 26, (WORDS, 7))]
        self.words = np.array(sorted({"".join(row) for row in drawn}), dtype=object)
        rng.shuffle(self.words)
        rank = np.arange(1, len(self.words) + 1)
        self._chances = np.cumsum(1 / (rank + 20))
        self._chances /= self._chances[-1]
        self._topics = rng.integers(0, len(self.words), (TOPICS, 60))
        self._rng = rng

    def batch(self, n: int) -> list[str]:
        rng = self._rng
        places = np.searchsorted(self._chances, rng.random((n, LENGTH)))
        topic = rng.integers(0, TOPICS, n)
        own = self._topics[topic[:, None], rng.integers(0, 60, (n, LENGTH))]
        places = np.where(rng.random((n, LENGTH)) < 0.5, own, places)
        return [" ".join(row) for row in self.words[places]]

    def batches(self, n: int, first: int = 0) -> Iterator[DocumentBatch]:
        for start in range(first, first + n, BATCH):
            size = min(BATCH, first + n - start)
            yield DocumentBatch(list(range(start, start + size)), self.batch(size))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = work()
    return made, time.perf_counter() - start


def differing(lsi: LSI, queries: list[str]) -> int:
    """Return how many of 20 lists of ten differ from those of a scan of all documents."""
    found = [lsi.query(query)["document"].to_list() for query in queries[:20]]
    with patch.object(search, "_GATHERED", 10**9):
        scanned = [lsi.query(query)["document"].to_list() for query in queries[:20]]
    return sum(a != b for a, b in zip(found, scanned, strict=True))


def gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=200)
    parser.add_argument("--index", type=Path, help="Where to save the index.")
    arguments = parser.parse_args()
    n, k = arguments.documents, arguments.dimensions
    print(f"{machine()}; kernels: {kernels.backend()}\n", flush=True)
    texts = Texts()
    _, generating = timed(lambda: [texts.batch(BATCH) for _ in range(4)])
    generating *= n / (4 * BATCH)
    lsi, seconds = timed(lambda: LSI(k).fit(texts.batches(n)))
    rows = [["index, without the generation of texts", seconds - generating]]
    with tempfile.TemporaryDirectory() as folder:
        target = arguments.index or Path(folder) / "index"
        _, saving = timed(lambda: lsi.save(target, overwrite=True))
        rows.append(["save", saving])
        rows.append(["peak of memory, GB", gigabytes()])
        del lsi
        lsi, loading = timed(lambda: LSI.load(target))
        rows.append(["load", loading])
        known = set(lsi.terms_.values)
        batch = [
            [word for word in text.split() if word in known]
            for text in texts.batch(200)
        ]
        for length in (2, 4, 20):
            queries = [" ".join(words[:length]) for words in batch]
            for method in ("bm25", "lsi", "hybrid"):
                for query in queries[:20]:
                    lsi.query(query, method=method)
                spent = [
                    timed(lambda q=q, m=method: lsi.query(q, method=m))[1]
                    for q in queries
                ]
                name = f"{length} words by {method}"
                rows.append([f"{name}, p50, milliseconds", 1000 * median(spent)])
                rows.append(
                    [f"{name}, p95, milliseconds", 1000 * np.quantile(spent, 0.95)]
                )
            rows.append(
                [
                    f"{length} words, lists that a full scan changes",
                    differing(lsi, queries),
                ]
            )
        for size in (1_000, 10_000):
            more = list(texts.batches(size, n + size))
            _, adding = timed(lambda more=more: lsi.add_documents(more))
            _, saving = timed(lambda: lsi.save(target, overwrite=True))
            rows.append([f"add {size:,} documents", adding])
            rows.append([f"save {size:,} documents more", saving])
        ids = list(range(0, n, max(1, n // 1000)))
        rows.append(
            [
                f"remove {len(ids):,} documents",
                timed(lambda: lsi.remove_documents(ids))[1],
            ]
        )
        rows.append(["save", timed(lambda: lsi.save(target, overwrite=True))[1]])
    headers = [
        f"{n:,} documents, {len(lsi.terms_):,} words, k = {lsi.n_components_}",
        "seconds",
    ]
    print(table(headers, rows))


if __name__ == "__main__":
    main()
