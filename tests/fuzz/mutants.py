"""Saved folders with a change: arrays that lie, damaged bytes, headers and documents.

Sizes and checksums fit, as somebody would make them who means it. Whoever loads one gets an
error of this package, or something whose methods run.

``python tests/fuzz/mutants.py COUNT [FIRST]`` tries each number from FIRST; under an
address sanitizer, arrays are in memory instead of mapped, so that reads outside are seen.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

import recsys.saving.model_file
from recsys import Evaluation, Ratings, Recommender, read_split
from recsys.errors import RecsysError
from recsys.lsi import LSI

SAVED = Path(__file__).resolve().parents[1] / "saved"
LARGE = 2**31 - 1
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, 1e308, -0.0),
    *("", "x", "als", "../x", "\x00", [], {}, [[]], [1, 2], {"x": 1}),
)
HEADERS = (
    *(b"'|S0'", b"'|V0'", b"'|O'", b"'>f4'", b"'<f8'", b"'<i8'", b"'<f1'", b"'<U9'"),
    *(b"(-1,)", b"()", b"(0,)", b"(99,)", b"(4294967296, 4294967296)", b"True", b"("),
)

Change = Callable[[Path, random.Random], None]


def enter(saved: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change model.json, and its checksum."""
    document = json.loads((saved / "model.json").read_bytes())
    change(document)
    document["checksum"] = recsys.saving.model_file.checksum(document)
    (saved / "model.json").write_text(json.dumps(document))


def enter_file(saved: Path, name: str, **entry: Any) -> None:
    """Enter size and checksum of a file in model.json, and what else is said of it."""
    content = (saved / name).read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    known = {"sha256": checksum, "bytes": len(content)} | entry
    enter(saved, lambda document: document["files"][name].update(known))


# Arrays


def changed(array: NDArray[Any], kind: str, rng: random.Random) -> NDArray[Any]:
    """Return an array with other values, or of another type or shape."""
    array = np.array(array)
    if kind in ("one", "all"):
        values = [0, -1, 1e30, -1e30, np.nan, np.inf]
        if array.dtype.kind in "iu":
            top = np.iinfo(array.dtype).max
            values = [0, 1, -1, -2, 2**15, 2**30, LARGE, array.size, top]
        value = np.array(rng.choice(values)).astype(array.dtype)
        flat = array.reshape(-1)
        one = slice(None)
        if kind == "one" and array.size:
            one = rng.randrange(array.size)
        flat[one] = value
        return array
    if kind == "shuffled":
        values = rng.sample(array.reshape(-1).tolist(), array.size)
        return np.array(values, array.dtype).reshape(array.shape)
    flat = array.reshape(-1)
    others: dict[str, Callable[[], Any]] = {
        "reversed": lambda: flat[::-1].reshape(array.shape),
        "swapped": lambda: array.astype(array.dtype.newbyteorder(">")),
        "float64": lambda: array.astype(np.float64),
        "float16": lambda: array.astype(np.float16),
        "int64": lambda: np.nan_to_num(array).astype(np.int64),
        "bool": lambda: array.astype(bool),
        "short": lambda: flat[:-1] if array.ndim < 2 else array[:-1],
        "long": lambda: np.concatenate(
            [np.atleast_1d(array), np.atleast_1d(array)[:1]]
        ),
        "fortran": lambda: np.asfortranarray(array),
        "turned": lambda: array.T,
        "empty": lambda: flat[:0],
        "scalar": lambda: flat[:1].sum(),
        "deep": lambda: array[..., None],
    }
    return np.asarray(others[kind]())


ARRAY_KINDS = (
    *("one", "one", "all", "shuffled", "reversed", "swapped", "float64", "float16"),
    *("int64", "bool", "short", "long", "fortran", "turned", "empty", "scalar", "deep"),
)


def lie(path: Path, rng: random.Random) -> None:
    """Change the values, type or shape of an array, and say the same in model.json."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers that do not fit into a type
        array = changed(np.load(path), rng.choice(ARRAY_KINDS), rng)
    np.save(path, array)
    folder = path.parents[1]
    name = path.relative_to(folder).as_posix()
    enter_file(folder, name, dtype=array.dtype.str, shape=list(array.shape))


def change_header(path: Path, rng: random.Random) -> None:
    """Change the type, shape or order in the header of an array, not its length."""
    content = path.read_bytes()
    length = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + length]
    words = [word for word in (b"'<", b"'|", b"(", b"False") if word in header]
    at = header.index(rng.choice(words))
    new = header[:at] + rng.choice(HEADERS) + header[at + rng.randrange(1, 9) :]
    new = new.rstrip()[: length - 1].ljust(length - 1) + b"\n"
    path.write_bytes(content[:10] + new + content[10 + length :])
    _fit(path)


# Any file


def flip(path: Path, rng: random.Random) -> None:
    """Change some bits."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8])):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    _fit(path)


def cut(path: Path, rng: random.Random) -> None:
    """Remove the end, or all."""
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice([0, rng.randrange(len(content) or 1)])])
    _fit(path)


def insert(path: Path, rng: random.Random) -> None:
    """Add, double or remove some bytes."""
    content = path.read_bytes()
    begin = rng.randrange(len(content) + 1)
    end = min(len(content), begin + rng.randrange(9))
    noise = rng.choice(
        [b"", content[begin:end] * 2, bytes(8), rng.randbytes(8), b"\xff"]
    )
    path.write_bytes(content[:begin] + noise + content[end:])
    _fit(path)


def wipe(path: Path, rng: random.Random) -> None:
    """Write zeros over a part, as some file systems do after a power cut."""
    content = bytearray(path.read_bytes())
    begin = rng.randrange(len(content) or 1)
    content[begin:] = bytes(len(content) - begin)
    path.write_bytes(content)
    _fit(path)


def _fit(path: Path) -> None:
    """Enter a file of a model or index in its model.json."""
    folder = path.parents[1]
    if path.suffix == ".npy":
        enter_file(folder, path.relative_to(folder).as_posix())


def replace_value(path: Path, rng: random.Random) -> None:
    """Replace a value anywhere in a JSON document, or remove it; the checksum fits."""
    document = json.loads(path.read_bytes())
    parent: Any = None
    node = document
    while (
        isinstance(node, dict | list)
        and node
        and (parent is None or rng.random() < 0.8)
    ):
        parent = node
        key = (
            rng.choice([*node]) if isinstance(node, dict) else rng.randrange(len(node))
        )
        node = node[key]
    if rng.random() < 0.2:
        del parent[key]
    elif isinstance(node, int | float) and rng.random() < 0.5:
        parent[key] = rng.choice([node + 1, -node, node * 2, node - 1])
    else:
        parent[key] = rng.choice(ODD_VALUES)
    if path.name == "model.json":
        with suppress(Exception):  # as of a document without files
            document["checksum"] = recsys.saving.model_file.checksum(document)
    path.write_text(json.dumps(document))


ANYWHERE: tuple[Change, ...] = (flip, cut, insert, wipe)
CHANGES: dict[str, tuple[Change, ...]] = {
    ".npy": (lie, lie, lie, lie, change_header, *ANYWHERE),
    ".json": (replace_value, replace_value, replace_value, *ANYWHERE),
}


# What is done with them


def use(saved: Path) -> None:
    """Load and use a saved folder in every way.

    Raises
    ------
    RecsysError
        If it cannot be loaded.
    """
    others = {
        "index": use_index,
        "split": use_split,
        "evaluation": use_evaluation,
        "study": use_study,
    }
    others.get(saved.name, use_model)(saved)


def use_model(saved: Path) -> None:
    recommender = Recommender.load(saved)
    ratings = recommender.ratings
    users, items = ratings.users.values, ratings.items.values
    some_users = users.head(2).to_list()
    first, *_ = items
    pairs = {"user": some_users, "item": items.head(len(some_users)).to_list()}
    history = dict.fromkeys(items.head(2).to_list(), 3.0)
    new = {
        "user": [users[0]] * 2,
        "item": items.tail(2).to_list(),
        "rating": [3.0, 4.0],
    }
    asks: tuple[Callable[[], object], ...] = (
        lambda: recommender.recommend(some_users, n=5),
        lambda: recommender.recommend(some_users, n=3, exclude_seen=False),
        lambda: recommender.predict(pl.DataFrame(pairs)),
        lambda: recommender.similar_items(first),
        lambda: recommender.similar_users(users[0]),
        lambda: recommender.explain(users[0], first),
        lambda: recommender.recommend(history=history),
        lambda: recommender.update(Ratings.from_frame(pl.DataFrame(new))),
        lambda: list(recommender.impute()),
        lambda: recommender.save(saved.with_name("again"), overwrite=True),
        lambda: str(recommender),
    )
    for ask in asks:  # not every model can do everything
        with suppress(RecsysError, LinAlgError):
            ask()


def use_index(saved: Path) -> None:
    index = LSI.load(saved)
    asks: tuple[Callable[[], object], ...] = (
        *(lambda m=m: index.query("green tea", method=m) for m in ("lsi", "bm25")),
        lambda: index.query("green tea for the garden"),
        lambda: index.similar_terms("tea"),
        lambda: index.add_documents(["Green tea and a lamp"], method="fold-in"),
        lambda: index.add_documents(["tea and pots", "new words"]),
        lambda: index.save(saved.with_name("again"), overwrite=True),
    )
    for ask in asks:
        with suppress(RecsysError, LinAlgError):
            ask()


def use_split(saved: Path) -> None:
    split = read_split(saved)
    recsys.evaluate(["popular"], split, 3, resamples=5)


def use_evaluation(saved: Path) -> None:
    evaluation = Evaluation.load(saved)
    str(evaluation.table)
    evaluation.save(saved.with_name("again"), overwrite=True)


def use_study(saved: Path) -> None:
    from saved.write import tuning

    tuning(saved / "als.study", 1)


def mutant(number: int, folder: Path) -> str:
    """Write the mutant of a number to a folder, use it, and return what came of it."""
    rng = random.Random(number)
    names = sorted(path.name for path in SAVED.iterdir() if path.is_dir())
    name = rng.choice([name for name in names if name != "__pycache__"])
    saved = folder / name
    shutil.copytree(SAVED / name, saved)
    files = sorted(path for path in saved.rglob("*") if path.is_file())
    documents = [path for path in files if path.suffix == ".json"]
    path = rng.choice(documents if documents and rng.random() < 0.15 else files)
    change = rng.choice(CHANGES.get(path.suffix, ANYWHERE))
    change(path, rng)
    try:
        use(saved)
    except RecsysError as error:
        return "rejected" if "\n" not in str(error) else "rejected in lines"
    except LinAlgError:  # the command says that the numbers are damaged
        return "not computed"
    except Exception as error:
        where = f"{path.relative_to(folder)}, {change.__name__}"
        error.add_note(f"mutant {number}: {where}")
        raise
    return "used"


def in_memory() -> None:
    """Copy arrays into memory, where a sanitizer sees what is outside of them."""
    mapped = recsys.saving.arrays.open_memmap
    recsys.saving.arrays.open_memmap = lambda *words: np.array(mapped(*words))


def main(count: int, first: int = 0) -> None:
    """Try some mutants; print the failures, and exit with 1 if there are any."""
    warnings.simplefilter("ignore")
    in_memory()
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            # If the process ends, this is the one.
            print(number, end="\r", file=sys.stderr, flush=True)
            try:
                outcomes[mutant(number, Path(folder))] += 1
            except Exception:
                outcomes["failed"] += 1
                traceback.print_exc()
    print(f"{count:,} mutants: {dict(outcomes)}")
    sys.exit(bool(outcomes["failed"]))


if __name__ == "__main__":
    sys.path.insert(0, str(SAVED.parent))
    main(*map(int, sys.argv[1:]))
