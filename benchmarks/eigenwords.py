"""Eigenwords and gensim's word2vec on one text: agreement of word vectors with human judgements.

The judgements of similarity are those of WordSim-353 and SimLex-999, from gensim's test data. The
text must have some million words, such as a dictionary or an encyclopedia.

Usage: python benchmarks/eigenwords.py TEXT [--dimensions K] [--min-count N] [--epochs N ...]
"""

from __future__ import annotations

import argparse
import re
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, table
from scipy.stats import spearmanr

from recsys.lsi import Eigenwords

WORD = re.compile(r"[a-z][a-z]+")
JUDGED = {"WordSim-353": ("wordsim353.tsv", 2), "SimLex-999": ("simlex999.txt", 2)}


def paragraphs(path: Path) -> list[str]:
    """Return the paragraphs of a text with the words of people in them, in small letters."""
    text = path.read_text(encoding="utf-8", errors="replace").lower()
    found = (" ".join(WORD.findall(part)) for part in re.split(r"\n\s*\n", text))
    return [part for part in found if part]


def judgements(name: str) -> list[tuple[str, str, float]]:
    from gensim.test.utils import datapath

    file, column = JUDGED[name]
    pairs = []
    for line in Path(datapath(file)).read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        try:
            pairs.append((fields[0].lower(), fields[1].lower(), float(fields[column])))
        except (IndexError, ValueError):
            continue  # comments and the header
    return pairs


def agreement(
    places: dict[str, int], vectors: np.ndarray, name: str
) -> tuple[float, int]:
    """Return Spearman's correlation of cosines and judgements, and how many pairs are known."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    known = [
        pair for pair in judgements(name) if pair[0] in places and pair[1] in places
    ]
    cosines = [float(unit[places[a]] @ unit[places[b]]) for a, b, _ in known]
    return float(spearmanr(cosines, [value for *_, value in known]).statistic), len(
        known
    )


def word2vec(texts: list[str], **settings: Any) -> tuple[dict[str, int], np.ndarray]:
    """Return skip-gram vectors with ten negative samples, gensim's other settings as they are."""
    from gensim.models import Word2Vec

    sentences = [text.split() for text in texts]
    vectors = Word2Vec(sentences, sg=1, negative=10, workers=2, seed=1, **settings).wv
    return vectors.key_to_index, vectors.vectors


def eigenwords(texts: list[str], **settings: Any) -> tuple[dict[str, int], np.ndarray]:
    words = Eigenwords(**settings).fit(texts)
    return {
        name: place for place, name in enumerate(words.terms_.values)
    }, words.vectors_


def measured(
    path: Path, made: Callable[..., Any], settings: dict[str, Any]
) -> list[Any]:
    """Return agreement with each list, number of words, seconds, and growth of the process, MB."""
    texts = paragraphs(path)
    before, start = peak(), time.perf_counter()
    places, vectors = made(texts, **settings)
    seconds, grown = time.perf_counter() - start, peak() - before
    found = [agreement(places, vectors, name) for name in JUDGED]
    return [
        *(f"{value:.3f} ({n})" for value, n in found),
        f"{len(places):,}",
        seconds,
        grown,
    ]


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--dimensions", type=int, default=100)
    parser.add_argument("--min-count", type=int, default=5)
    parser.add_argument("--epochs", type=int, nargs="+", default=[5, 20])
    arguments = parser.parse_args()
    k, least = arguments.dimensions, arguments.min_count
    n_words = sum(text.count(" ") + 1 for text in paragraphs(arguments.text))
    print(f"{machine()}; {n_words:,} words\n", flush=True)
    runs: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
    for scaling, sides, window in (
        ("sqrt", "apart", 2),
        ("sqrt", "merged", 5),
        ("ppmi", "merged", 5),
    ):
        settings = {
            "scaling": scaling,
            "sides": sides,
            "window": window,
            "n_components": k,
        }
        runs[f"Eigenwords, {scaling}, {sides}, window {window}"] = eigenwords, settings
    for epochs in arguments.epochs:
        settings = {"vector_size": k, "window": 5, "epochs": epochs}
        runs[f"word2vec (gensim), window 5, {epochs} epochs"] = word2vec, settings
    rows = []
    for name, (made, settings) in runs.items():
        with ProcessPoolExecutor(1) as alone:  # so that memory is that of one run
            how = arguments.text, made, {**settings, "min_count": least}
            rows.append([name, *alone.submit(measured, *how).result()])
        print(rows[-1], flush=True)
    headers = [
        "vectors",
        *(f"{name} (pairs)" for name in JUDGED),
        "words",
        "seconds",
        "memory, MB",
    ]
    print("\n" + table(headers, rows))


if __name__ == "__main__":
    main()
