"""Write a folder of tiny generated data sets, in the files that the benchmarks read.

With it as RECSYS_DATASETS, every script runs in seconds. Its figures mean nothing.

Usage: python benchmarks/tiny.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
from generated import movielens_shaped
from search_scale import Texts

PAIRS = 60_000
FILMS = 10_000
DOCUMENTS = 400
QUERIES = 20


def write(folder: Path) -> None:
    """Write all data sets."""
    for name, write_files in WRITERS.items():
        (folder / name).mkdir(parents=True)
        write_files(folder / name)


def pairs(n: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return most of n generated ratings, and a fifth as a test part."""
    matrix = movielens_shaped(n).tocoo()
    users, items = matrix.coords
    times = 1_000_000_000 + np.random.default_rng(0).permutation(n)
    columns = {"user": users, "item": items, "rating": matrix.data, "time": times}
    frame = pl.DataFrame(columns)
    is_test = pl.Series(np.arange(n) % 5 == 0)
    return frame.filter(~is_test), frame.filter(is_test)


def gowalla(folder: Path) -> None:
    """Write a line of items for each user."""
    for name, part in zip(("train", "test"), pairs(PAIRS), strict=True):
        lines = [
            f"{user} {' '.join(map(str, items))}\n"
            for user, items in part.group_by("user", maintain_order=True)
            .agg("item")
            .iter_rows()
        ]
        (folder / f"{name}.txt").write_text("".join(lines))


def lastfm(folder: Path) -> None:
    """Write users, items and numbers of plays, without a header."""
    for name, part in zip(("train", "test"), pairs(FILMS), strict=True):
        plays = part.select("user", "item", "rating")
        plays.write_csv(folder / f"{name}.tsv", include_header=False, separator="\t")


def films(folder: Path) -> None:
    """Write the ratings, titles, genres and tags of films."""
    ratings = pl.concat(pairs(FILMS))
    ratings.columns = ["userId", "movieId", "rating", "timestamp"]
    ratings.write_csv(folder / "ratings.csv")
    ids = ratings["movieId"].unique().sort().to_list()
    rows = [
        (
            film,
            f"Film {film} ({1950 + film % 70})",
            f"Genre {film % 7}|Genre {film % 5}",
        )
        for film in ids
    ]
    columns = ["movieId", "title", "genres"]
    pl.DataFrame(rows, columns, orient="row").write_csv(folder / "movies.csv")
    tags = [(1, film, f"tag {film % 11}", 1_000_000_000) for film in ids[::2]]
    columns = ["userId", "movieId", "tag", "timestamp"]
    pl.DataFrame(tags, columns, orient="row").write_csv(folder / "tags.csv")


def clicks(folder: Path) -> None:
    """Write sessions of clicks."""
    rows = pairs(FILMS)[0].select(
        SessionId=pl.int_range(pl.len()) // 4, ItemId="item", Time="time"
    )
    rows.write_csv(folder / "clicks.txt", separator="\t")


def cranfield(folder: Path) -> None:
    """Write documents, queries and judgements in the SMART form."""
    documents, queries = texts()
    (folder / "cran.all.1400").write_text(records(documents))
    (folder / "cran.qry").write_text(records(queries))
    lines = [f"{query} {17 * query} 1\n" for query in range(1, QUERIES + 1)]
    (folder / "cranqrel").write_text("".join(lines))


def cacm(folder: Path) -> None:
    """Write documents in the SMART form, queries and judgements in the forms of TREC."""
    documents, queries = texts()
    (folder / "cacm.all").write_text(records(documents))
    numbered = list(enumerate(queries, start=1))
    topics = [f"<DOC>\n<DOCNO> {n} </DOCNO>\n{text}\n</DOC>\n" for n, text in numbered]
    (folder / "topics.cacm.txt").write_text("".join(topics))
    lines = [f"{query} Q0 CACM-{17 * query:04} 1\n" for query, _ in numbered]
    (folder / "qrels.cacm.txt").write_text("".join(lines))


def texts() -> tuple[list[str], list[str]]:
    """Return documents, and queries of some words of every seventeenth document."""
    documents = Texts().batch(DOCUMENTS)
    sources = documents[16::17][:QUERIES]
    return documents, [" ".join(text.split()[:6]) for text in sources]


def records(written: list[str]) -> str:
    """Return texts as records of the SMART form, the first words as a title."""
    return "".join(
        f".I {number}\n.T\n{text[:20]}\n.W\n{text}\n"
        for number, text in enumerate(written, start=1)
    )


WRITERS = {
    "gowalla": gowalla,
    "lastfm": lastfm,
    "ml-latest-small": films,
    "yoochoose": clicks,
    "cranfield": cranfield,
    "cacm": cacm,
}

if __name__ == "__main__":
    write(Path(sys.argv[1]))
