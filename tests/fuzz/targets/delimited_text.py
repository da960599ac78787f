"""Bytes as a file of ratings: ratings, or one sentence. The first byte chooses the name."""

from __future__ import annotations

import tempfile
from pathlib import Path

from saved.write import events

from recsys import read_ratings
from recsys.errors import DataError

NAMES = ("ratings.csv", "ratings.dat", "u.data", "train.txt", "r.tsv", "r.jsonl")
FRAME = events()
_rows = [tuple(map(str, row)) for row in FRAME.rows()]
SEEDS = [
    b"\0" + FRAME.write_csv().encode(),
    b"\1" + "".join("::".join(row) + "\n" for row in _rows).encode(),
    b"\2" + FRAME.write_csv(separator="\t", include_header=False).encode(),
    b"\3" + b"".join(b"%d 5 6 7\n" % user for user in range(9)),
    b"\4" + FRAME.write_csv(separator="\t").encode(),
    b"\5" + FRAME.write_ndjson().encode(),
    b"\0" + b'user;item;"rating"\n1;2;"3,5"\n"1";"x;y";4\n',
    b"\0" + "\ufeffuserId,movieId,rating,timestamp\n1,2,3.5,2020-01-01\n".encode(),
]
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))


def attempt(data: bytes) -> None:
    """Read the ratings."""
    path = FOLDER / NAMES[data[0] % len(NAMES) if data else 0]
    path.write_bytes(data[1:])
    try:
        read_ratings(path)
    except DataError as error:
        if "\n" in str(error):
            raise AssertionError(str(error)) from error
    finally:
        path.unlink()
