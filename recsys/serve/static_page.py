"""The page of the service as one file, which contains the data and arithmetic of the model."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from math import isqrt
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lowrank.kernels.topk import Ties
from recsys.errors import DataError
from recsys.messages import counted
from recsys.models.abilities import FoldsInUsers
from recsys.ranking.filters import left_out
from recsys.ranking.topn import CsrPairs, Scorer, top_n
from recsys.serve.browser_model import Form, browser_model, is_linear, scores_new
from recsys.serve.catalogue import Catalogue, id_texts
from recsys.serve.loading import load_pairs
from recsys.serve.problems import ProblemError

if TYPE_CHECKING:
    from recsys.models.base import Model
    from recsys.models.parts import Indices
    from recsys.recommender import Recommender

_MAX_BYTES = (
    48 * 2**20
)  # bytes of arrays: browsers open a page of 64 MB, but not of 640
_N_NEIGHBOURS = 20
_LENGTH = 100  # of a list that is computed in advance
_ON_MAP = 1000
_WIDTH = 8  # alignment of arrays in bytes

_SCRIPT = re.compile(r'<script defer src="page/([a-z]+\.js)"></script>\n')
_STYLE = re.compile(r'<link rel="stylesheet" href="page/([a-z]+\.css)">')
_SOURCES = {"service.js": ("arithmetic.js", "embedded.js")}
"""Scripts that replace a script of the service in the page."""


@dataclass(frozen=True, slots=True)
class StaticPage:
    """Page to explore a model, as one HTML file.

    Attributes
    ----------
    html : str
    n_items, n_users : int
        Numbers of items and of users in the page.
    """

    html: str
    n_items: int
    n_users: int


def static_page(
    recommender: Recommender,
    other: Recommender | None = None,
    *,
    n_items: int | None = None,
    n_users: int = 200,
    title: str | None = None,
    together: str | None = None,
) -> StaticPage:
    """Make a page that computes recommendations itself, without a server or network.

    Parameters
    ----------
    recommender : Recommender
    other : Recommender, optional
        Second model, whose recommendations are shown next to the first model's.
    n_items : int, optional
        Number of items in the page, those with the most ratings; by default all.
    n_users : int
        Number of users, from the first, whose ratings are in the page. Everyone who has the page
        can read them.
    title : str, optional
        Title of the page; by default, it has the names of the models.
    together : str, optional
        Table of `recsys together`: a file, or a table of a database.

    Raises
    ------
    DataError
        If there are too many items for one page, or the second model lacks an item of
        the first.
    """
    models = {"a": recommender}
    if other is not None:
        models["b"] = other
    n_all = recommender.ratings.n_items
    n = n_all if n_items is None else min(n_items, n_all)
    catalogue = Catalogue(recommender, recommender.model.name)
    items = catalogue.most_rated(n)
    if not recommender.model.uses_features:  # items without ratings have no scores
        items = items[catalogue.counts[items] > 0]
    # In the order of the ratings, in which their rows are stored.
    items = np.sort(items)
    # A user without ratings has nothing to show.
    rated = np.flatnonzero(recommender.ratings.counts("user"))
    users = rated[: max(n_users, 0)]
    remark = None
    if len(items) < n_all:
        remark = f"{counted(len(items), 'item')} in this page"
    cards = {}
    forms = {}
    for variant, model in models.items():
        cards[variant] = {
            "name": model.model.name,
            "rates": model.model.predicts_ratings,
        }
        forms[variant] = _model(model, recommender, items, users)
    data = {
        "card": {
            "models": cards,
            "parameters": recommender.model.get_params(),
            "training": recommender.training,
            "title": title,
            "remark": remark,
        },
        "weighted": recommender.ratings.weighted or not recommender.ratings.implicit,
        "items": _items(catalogue, items),
        "users": _users(recommender, items, users),
        "models": forms,
        "together": None if together is None else _pairs(together, catalogue, items),
    }
    return StaticPage(_assembled(data), len(items), len(users))


def _check_size(
    model: Model,
    n: int,
    size: int,
    n_fitting: int,
) -> None:
    """Check that the arrays for n items, of `size` bytes, fit in a page."""
    if size <= _MAX_BYTES:
        return
    unit = 10 ** max(0, len(str(n_fitting)) - 2)  # round to two digits
    raise DataError(
        f"A page with {n:,} items of the {model.name} model would take "
        f"{size / 2**20:,.0f} MB, and browsers can open {_MAX_BYTES // 2**20} MB; keep the "
        f"most rated ones with n_items={n_fitting // unit * unit} (--items), or use "
        "`recsys serve`, which has no limit."
    )


def _form(
    model: Model,
    recommender: Recommender,
    items: Indices,
    users: Indices,
) -> Form | None:
    """Return the form of a model, None if it has none; raise if it is too large."""
    if not isinstance(model, FoldsInUsers):
        return None
    n = len(items)
    if is_linear(model):  # the weights may not even fit into memory
        _check_size(model, n, 4 * n * n, isqrt(_MAX_BYTES // 4))
    form = browser_model(model, recommender.ratings, items, users)
    if form is not None:
        arrays = [value for value in form.values() if isinstance(value, np.ndarray)]
        size = sum(array.nbytes for array in arrays)
        _check_size(model, n, size, n * _MAX_BYTES // max(1, size))
    return form


def _items(catalogue: Catalogue, items: Indices) -> Form:
    ratings = catalogue.ratings
    order = Ties(ratings.items.hashes).places(items, items)
    columns: Form = {
        "ids": id_texts(ratings.items, items),
        "titles": None,
        "counts": catalogue.counts[items].astype(np.int32),
        "ties": np.argsort(np.argsort(order)).astype(np.int32),
    }
    if ratings.titles is not None:
        columns["titles"] = ratings.titles[items].to_list()
    if not ratings.implicit:
        columns["means"] = catalogue.means[items].astype(np.float32)
    if ratings.item_table is not None:
        columns["features"] = [catalogue.features("item", item) for item in items]
    return columns


def _users(
    recommender: Recommender,
    items: Indices,
    users: Indices,
) -> Form:
    """Return the users' ratings of items in the page, as rows of a CSR matrix."""
    # Ratings of items outside of the page are left out.
    rows = recommender.ratings.matrix[users][:, items]
    return {
        "ids": id_texts(recommender.ratings.users, users),
        "starts": rows.indptr.astype(np.int32),
        "places": rows.indices.astype(np.int32),
        "values": rows.data,
    }


def _model(
    recommender: Recommender,
    first: Recommender,
    items: Indices,
    users: Indices,
) -> Form:
    """Return the data of a model; `items` and `users` are indices of the first model."""
    if recommender is not first:
        # The models may number users and items differently.
        items = recommender.ratings.items.index(first.ratings.items.take(items))
        users = recommender.ratings.users.find(first.ratings.users.take(users))
    model = recommender.model
    ratings = recommender.ratings
    catalogue = Catalogue(recommender, model.name)
    form = _form(model, recommender, items, users)
    data: Form = {
        "scores_new": scores_new(model) and ratings.item_features is not None,
        "form": form,
        "similar": None,
        "next": _next(recommender, items) if model.uses_order else None,
        "map": None,
        "spectrum": None,
    }
    if form is None:
        data["lists"] = _lists(recommender, items, users)
    with suppress(DataError):  # the page then shows a message
        data["similar"] = _neighbours(recommender, items)
    with suppress(ProblemError):
        data["map"] = catalogue.map(min(len(items), _ON_MAP))
    with suppress(ProblemError):
        data["spectrum"] = catalogue.spectrum()
    return data


def _lists(
    recommender: Recommender,
    items: Indices,
    users: Indices,
) -> Form:
    """Return the best items of each user of the page, without the history."""
    ratings = recommender.ratings
    rated = left_out(ratings)
    return _ranked(recommender, recommender.model, users, items, _LENGTH, rated)


def _neighbours(recommender: Recommender, items: Indices) -> Form:
    """Return the most similar items of each item."""
    scorer = recommender._item_similarity
    n = min(_N_NEIGHBOURS, max(1, len(items) - 1))
    n_items = recommender.ratings.n_items
    return _ranked(recommender, scorer, items, items, n, CsrPairs.diagonal(n_items))


def _pairs(
    together: str,
    catalogue: Catalogue,
    items: Indices,
) -> Form:
    """Return what is bought together with each item, padded with -1."""
    pairs = load_pairs(together)
    ids = id_texts(catalogue.ratings.items, items)
    position = {id: at for at, id in enumerate(ids)}
    shape = (len(ids), _N_NEIGHBOURS)
    places = np.full(shape, -1, np.int32)
    both = np.zeros(shape, np.int32)
    low = np.zeros(shape, np.float32)
    for at, id in enumerate(ids):
        # Items outside of the page are left out.
        rows = pairs.rows_of(id, _N_NEIGHBOURS)
        rows = [row for row in rows if row["item"] in position]
        for rank, row in enumerate(rows):
            places[at, rank] = position[row["item"]]
            both[at, rank] = row["both"]
            low[at, rank] = row["low"]
    return {"places": places, "scores": both, "low": low}


def _next(recommender: Recommender, items: Indices) -> Form:
    """Return what comes next after each item alone."""
    itself = CsrPairs.diagonal(recommender.ratings.n_items)
    scorer = recommender._followers
    return _ranked(recommender, scorer, items, items, _N_NEIGHBOURS, itself)


def _ranked(
    recommender: Recommender,
    scorer: Scorer,
    queries: Indices,
    items: Indices,
    n: int,
    exclude: CsrPairs,
) -> Form:
    """Return the n best items of each query, as positions in the page, padded with -1.

    A query of -1 has none.
    """
    position = np.full(recommender.ratings.n_items, -1)
    position[items] = np.arange(len(items))
    is_allowed = position >= 0
    if recommender._listed is not None:
        is_allowed &= recommender._listed
    positions = np.full((len(queries), n), -1, np.int32)
    scores = np.zeros(positions.shape, np.float32)
    rows = np.flatnonzero(queries >= 0)
    blocks = top_n(
        scorer,
        queries[rows],
        n,
        exclude=exclude,
        allowed=is_allowed,
        ties=Ties(recommender.ratings.items.hashes),
    )
    for top in blocks:
        # The page numbers its items itself.
        positions[rows[top.rows], top.ranks - 1] = position[top.items]
        scores[rows[top.rows], top.ranks - 1] = top.scores
    return {"places": positions, "scores": scores}


def _packed(data: Form) -> str:
    """Return a compressed document as text; the bytes of arrays follow the other values."""
    blocks: list[bytes] = []

    def referred(node: Any) -> Any:
        if isinstance(node, np.ndarray):
            raw = np.ascontiguousarray(node, node.dtype.newbyteorder("<")).tobytes()
            offset = sum(map(len, blocks))
            blocks.append(raw + bytes(-len(raw) % _WIDTH))
            return {
                "$array": offset,
                "dtype": node.dtype.name,
                "shape": list(node.shape),
            }
        if isinstance(node, dict):
            return {name: referred(value) for name, value in node.items()}
        return [referred(value) for value in node] if isinstance(node, list) else node

    head = msgspec.json.encode(referred(data))
    length = len(head).to_bytes(_WIDTH, "little")
    document = b"".join([length, head, bytes(-len(head) % _WIDTH), *blocks])
    return base64.b64encode(gzip.compress(document, 6, mtime=0)).decode()


def _assembled(data: Form) -> str:
    """Return the page of the service with styles, scripts and data embedded.

    Its security policy allows these scripts only, and no other resources.
    """
    folder = files("recsys.serve") / "page"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    html = read("index.html")
    style = "\n".join(read(name) for name in _STYLE.findall(html))
    names = [
        part for name in _SCRIPT.findall(html) for part in _SOURCES.get(name, (name,))
    ]
    scripts = [read(name) for name in names]
    allowed = " ".join(_digest(script) for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # A file has no headers for the policy.
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    html = html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    html = _STYLE.sub(lambda _: f"<style>{style}</style>", html)
    body = f'<script type="text/plain" id="data">{_packed(data)}</script>\n'
    body += "".join(f"<script>{script}</script>\n" for script in scripts)
    return _SCRIPT.sub("", html).replace("</body>", f"{body}</body>")


def _digest(text: str) -> str:
    return (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    )
