"""The page of the service as one file, which contains the data and arithmetic of the model."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lowrank.kernels.topk import Ties
from recsys.errors import DataError
from recsys.messages import counted
from recsys.models.abilities import FoldsInUsers
from recsys.serve.browser_model import Form, closed_form, form_size, scores_new
from recsys.serve.catalogue import Catalogue, id_texts
from recsys.serve.problems import ProblemError
from recsys.topn import Cosine, top_n

if TYPE_CHECKING:
    from recsys.models.base import Indices
    from recsys.recommender import Recommender

_MOST = 48 * 2**20  # bytes of arrays: browsers open a page of 64 MB, but not of 640
_NEIGHBOURS = 20
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
) -> StaticPage:
    """Make a page that computes recommendations itself, without a server or network.

    Parameters
    ----------
    recommender : Recommender
    other : Recommender, optional
        Second model, whose recommendations are shown next to those of the first.
    n_items : int, optional
        Number of items in the page, those with the most ratings; by default all.
    n_users : int
        Number of users, from the first, whose ratings are in the page. Everyone who has the page
        can read them.
    title : str, optional
        Title of the page; by default, it has the names of the models.

    Raises
    ------
    DataError
        If a model has no closed form for new users, there are too many items for one page, or the
        second model lacks an item of the first.
    """
    models = {"a": recommender} | ({} if other is None else {"b": other})
    known = recommender.ratings.n_items
    n = known if n_items is None else min(n_items, known)
    for each in models.values():
        _check_size(each, n)
    facts = Catalogue(recommender, recommender.model.name)
    chosen = facts.most_rated(n)
    # otherwise, items without ratings have no scores
    featured = recommender.model.uses_features
    items = np.sort(chosen[featured | (facts.counts[chosen] > 0)])
    rated = np.flatnonzero(np.diff(recommender.ratings.indptr))
    users = rated[: max(n_users, 0)]
    remark = (
        f"{counted(len(items), 'item')} in this page" if len(items) < known else None
    )
    data = {
        "card": {
            "models": {
                variant: {"name": each.model.name, "rates": each.model.predicts_ratings}
                for variant, each in models.items()
            },
            "parameters": recommender.model.get_params(),
            "training": recommender.training,
            "title": title,
            "remark": remark,
        },
        "weighted": recommender.ratings.weighted or not recommender.ratings.implicit,
        "items": _items(facts, items),
        "users": _users(recommender, items, users),
        "models": {
            variant: _model(each, recommender, items, users)
            for variant, each in models.items()
        },
    }
    return StaticPage(_assembled(data), len(items), len(users))


def _check_size(recommender: Recommender, n: int) -> None:
    """Check that the arrays for n items fit in a page."""
    model = recommender.model
    if (size := form_size(model, n)) <= _MOST:
        return
    low = max(
        1, bisect_right(range(n), _MOST, key=partial(form_size, model)) - 1
    )  # the most
    digits = 10 ** max(0, len(str(low)) - 2)
    raise DataError(
        f"A page with {n:,} items of the {model.name} model would take {size / 2**20:,.0f} MB, and "
        f"browsers can open {_MOST // 2**20} MB; keep the most rated ones with "
        f"n_items={low // digits * digits} (--items), or use `recsys serve`, which has no limit."
    )


def _items(facts: Catalogue, items: Indices) -> Form:
    ratings, titles = facts.ratings, facts.ratings.titles
    places = Ties(ratings.items.hashes).places(items, items)
    found: Form = {
        "ids": id_texts(ratings.items, items),
        "titles": None if titles is None else titles[items].to_list(),
        "counts": facts.counts[items].astype(np.int32),
        "ties": np.argsort(np.argsort(places)).astype(np.int32),
    }
    if not ratings.implicit:
        found["means"] = facts.means[items].astype(np.float32)
    if ratings.item_table is not None:
        found["features"] = [facts.features("item", item) for item in items]
    return found


def _users(recommender: Recommender, items: Indices, users: Indices) -> Form:
    """Return the users' ratings of items in the page, as rows of a CSR matrix."""
    rows = recommender.ratings.matrix[users][:, items]
    return {
        "ids": id_texts(recommender.ratings.users, users),
        "starts": rows.indptr.astype(np.int32),
        "places": rows.indices.astype(np.int32),
        "values": rows.data,
    }


def _model(
    each: Recommender, first: Recommender, items: Indices, users: Indices
) -> Form:
    """Return the data of a model for the page; `items` and `users` are indices of the first one."""
    if not isinstance(each.model, FoldsInUsers):
        closed_form(each.model, each.ratings, items, users)  # raises
    if each is not first:
        items = each.ratings.items.index(first.ratings.items.take(items))
        users = each.ratings.users.find(first.ratings.users.take(users))
    found: Form = {
        "form": closed_form(each.model, each.ratings, items, users),
        "scores_new": scores_new(each.model),
        "similar": None,
        "map": None,
        "spectrum": None,
    }
    with suppress(DataError):  # the page then shows a message
        found["similar"] = _neighbours(each, items)
    facts = Catalogue(each, each.model.name)
    with suppress(ProblemError):
        found["map"] = facts.map(min(len(items), _ON_MAP))
    with suppress(ProblemError):
        found["spectrum"] = facts.spectrum()
    return found


def _neighbours(recommender: Recommender, items: Indices) -> Form:
    """Return the most similar items of each, as positions in the page, padded with -1."""
    place = np.full(recommender.ratings.n_items, -1)
    place[items] = np.arange(len(items))
    shape = len(items), min(_NEIGHBOURS, max(1, len(items) - 1))
    places, scores = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
    blocks = top_n(
        recommender._item_similarity,
        items,
        shape[1],
        exclude=Cosine.exclude_itself,
        allowed=place >= 0,
        ties=Ties(recommender.ratings.items.hashes),
    )
    for top in blocks:
        places[top.rows, top.ranks - 1] = place[top.items]
        scores[top.rows, top.ranks - 1] = top.scores
    return {"places": places, "scores": scores}


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
    whole = b"".join([length, head, bytes(-len(head) % _WIDTH), *blocks])
    return base64.b64encode(gzip.compress(whole, 6, mtime=0)).decode()


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
