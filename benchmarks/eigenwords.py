"""Word vectors against judgements of people: eigenwords next to gensim's word2vec on one text.

The judgements are those of WordSim-353 and SimLex-999, which gensim has among its test data; a text
of some million words has to be given, such as a dictionary or an encyclopedia.

Usage: python benchmarks/eigenwords.py TEXT [--dimensions K] [--min-count N] [--epochs N]
"""

from __future__ import annotations

import argparse
import re
import time
import tracemalloc
from collections.abc import Callable, Iterable
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


def agreement(places: dict[str, int], vectors: np.ndarray, name: str) -> tuple[float, int]:
    """Return Spearman's correlation of cosines and judgements, and how many pairs are known."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    known = [pair for pair in judgements(name) if pair[0] in places and pair[1] in places]
    cosines = [float(unit[places[a]] @ unit[places[b]]) for a, b, _ in known]
    return float(spearmanr(cosines, [value for *_, value in known]).statistic), len(known)


def word2vec(texts: Iterable[str], k: int, window: int, min_count: int, epochs: int) -> Any:
    from gensim.models import Word2Vec

    sentences = [text.split() for text in texts]
    model = Word2Vec(
        sentences,
        vector_size=k,
        window=window,
        min_count=min_count,
        sg=1,
        negative=10,
        epochs=epochs,
        workers=2,
        seed=1,
    )
    return model.wv.key_to_index, model.wv.vectors


def eigenwords(texts: list[str], **settings: Any) -> Any:
    words = Eigenwords(**settings).fit(texts)
    names = words.terms_.values.to_list()
    return {name: place for place, name in enumerate(names)}, words.vectors_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--dimensions", type=int, default=200)
    parser.add_argument("--min-count", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--no-memory", action="store_true", help="Do not trace memory: faster.")
    arguments = parser.parse_args()
    texts = paragraphs(arguments.text)
    k, least = arguments.dimensions, arguments.min_count
    print(f"{machine()}; {sum(text.count(' ') + 1 for text in texts):,} words\n", flush=True)
    runs: dict[str, Callable[[], Any]] = {}
    for scaling, sides, window in (
        ("sqrt", "apart", 2),
        ("sqrt", "merged", 5),
        ("ppmi", "merged", 2),
        ("ppmi", "merged", 5),
    ):
        settings = {"scaling": scaling, "sides": sides, "window": window, "min_count": least}
        runs[f"Eigenwords, {scaling}, {sides}, window {window}"] = lambda settings=settings: (
            eigenwords(texts, n_components=k, **settings)
        )
    runs[f"word2vec (gensim), window 5, {arguments.epochs} epochs"] = lambda: word2vec(
        texts, k, 5, least, arguments.epochs
    )
    rows = []
    for name, run in runs.items():
        if not arguments.no_memory:
            tracemalloc.start()
        start = time.perf_counter()
        places, vectors = run()
        seconds = time.perf_counter() - start
        peak = "" if arguments.no_memory else f"{tracemalloc.get_traced_memory()[1] / 2**20:,.0f}"
        tracemalloc.stop()
        found = [agreement(places, vectors, judged) for judged in JUDGED]
        values = [f"{value:.3f} ({n})" for value, n in found]
        rows.append([name, *values, f"{len(places):,}", seconds, peak])
        print(rows[-1], flush=True)
    headers = ["vectors", *(f"{name} (pairs)" for name in JUDGED), "words", "seconds", "peak, MB"]
    print("\n" + table(headers, rows))


if __name__ == "__main__":
    main()
