"""New ids that may be known ones in another writing, or ids of the other column."""

from __future__ import annotations

import re

import polars as pl

from recsys.data.ids import Ids, decoded
from recsys.data.ratings import Ratings
from recsys.messages import counted

_UNSEEN = r"\p{Cf}+|^[\s\"'=]+|[\s\"']+$"  # blanks within an id are seen
_PREFIXED = re.compile(r"(\D+)\d+")


def doubtful_ids(known: Ratings, users: Ids, items: Ids) -> str | None:
    """Return a remark on new ids that may be known ones, or None."""
    sides = (
        (known.users, known.items, users),
        (known.items, known.users, items),
    )
    remarks = [doubt(*side) for side in sides]
    return ", ".join(filter(None, remarks)) or None


def doubt(ids: Ids, other_ids: Ids, new_ids: Ids) -> str | None:
    """Return a remark on unknown users or items that may be known ones, or None."""
    unknown = new_ids.values.filter(ids.find(new_ids.values) < 0)
    if not len(unknown):
        return None
    noun = counted(len(unknown), f"new {ids.kind}")
    texts = unknown.cast(pl.String)
    # Numbers of users and of items are often the same.
    if pl.String in (ids.dtype, unknown.dtype):
        n_other = int((other_ids.find(texts) >= 0).sum())
        if 2 * n_other > len(unknown):
            return (
                f"of the {noun}, {n_other:,} are known {other_ids.kind}s, as if the "
                "columns were exchanged"
            )
    text = pl.lit(texts)
    forms = [
        text.str.to_lowercase(),
        text.str.to_uppercase(),
        text.str.normalize("NFC"),
        text.str.normalize("NFD"),
        text.str.strip_suffix(".0"),
        text.str.strip_chars_start("0"),
        text.str.strip_chars_start(" 0+").str.strip_chars_end(),
        text.str.replace(r"^\D+(\d+)$", "$1"),
        text.str.replace_all(_UNSEEN, ""),
        pl.lit(decoded(texts)),
    ]
    first = str(next(iter(ids), ""))
    if first.isdecimal():
        forms.append(text.str.zfill(len(first)))
    prefixed = _PREFIXED.fullmatch(first)
    if prefixed is not None:
        forms.append(pl.lit(prefixed[1]) + text)
    writings = pl.select(pl.concat_list(forms).explode()).to_series()
    is_known = ids.find(writings).reshape(len(texts), -1) >= 0
    n_alike = int(is_known.any(axis=1).sum())
    if not n_alike:
        return None
    differ = "differs" if n_alike == 1 else "differ"
    return f"of the {noun}, {n_alike:,} {differ} from known ones only in writing"
