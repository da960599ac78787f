"""Reasons of a recommendation in words, from the contributions to its score."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from recsys.data.arrays import Floats

if TYPE_CHECKING:
    from recsys.models.histories import Histories

Language: TypeAlias = Literal["en", "de"]
LANGUAGES: tuple[Language, ...] = ("en", "de")

_NAMED = 2**10  # kinds and features whose words are kept
_NOTHING = 1  # thousandths of a score that are rounding
_TINY = 1e-300  # divisor of shares if nothing contributes
_LEAST = 0.1  # share of the score below which reasons are summed
# Nobody likes an item because it is in stock, or for what it costs.
_OF_THE_SHOP = re.compile(
    r"price|preis|cost(?!um)|kosten|stock(?!ing)|lager|bestand(?!teil)|inventory|availab"
    r"|verf[uü]g|discount|rabatt|margin|marge|quantity|liefer|shipping|versand|on.?hand"
    r"|st(?:ü|ue?)ckzahl|sold.?out|ausverkauf"
    r"|(?<![a-z])(?:qty|menge|uvp|msrp|rrp|vk|ek|netto|brutto|vat|mwst)(?![a-z])",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?:user: )?(.*?)(?: [=~] | near |$)")
# What a user has done, by kinds of events.
_DEEDS: tuple[tuple[str, dict[str, str]], ...] = (
    ("cart|basket|korb", {"en": "put {} in the basket", "de": "{} in den Korb gelegt"}),
    (
        "purchas|buy|bought|order|sale|kauf|bestell",
        {"en": "bought {}", "de": "{} gekauft"},
    ),
    ("like|fav|wish|bookmark|merk", {"en": "liked {}", "de": "{} gemerkt"}),
    ("play|listen|scrobble|hör", {"en": "listened to {}", "de": "{} gehört"}),
    ("view|click|look|visit|seh|ansicht", {"en": "looked at {}", "de": "{} angesehen"}),
    ("^rating$", {"en": "rated {}", "de": "{} bewertet"}),
    ("", {"en": "chose {}", "de": "{} gewählt"}),
)
_AND = {"en": "and", "de": "und"}
_DONE = {"en": "because you {}", "de": "weil Sie {} haben"}
_FEATURES = {"en": "because of {}", "de": "wegen {}"}
_AMONG_OTHERS = {"en": "{}, among other reasons", "de": "unter anderem {}"}
_POPULAR = {"en": "because many others like it", "de": "weil es vielen anderen gefällt"}


def kinds_of_history(history: Histories, implicit: bool) -> list[str]:
    """Return what a user has done with each item: "rating", a kind of event, or "interaction".

    Of several kinds of events, the one with the largest weight counts.
    """
    events, rule = history.events, history.rule
    n_items = len(history.indices)
    if not implicit:
        return ["rating"] * n_items
    if events is None or events.kinds is None or rule is None:
        return ["interaction"] * n_items
    pairs = zip(events.items.tolist(), events.kinds.tolist(), strict=True)
    strongest: dict[int, int] = {}
    for item, code in pairs:
        best = strongest.get(item, code)
        if rule.weights[code] >= rule.weights[best]:
            best = code
        strongest[item] = best
    kinds = []
    for item in history.indices.tolist():
        kind = "interaction"
        if item in strongest:
            kind = rule.kinds[strongest[item]]
        kinds.append(kind)
    return kinds


def shared_reasons(
    name: Callable[[int], Mapping[str, Any]], terms: Floats
) -> list[dict[str, Any]]:
    """Return the reasons with their shares of all positive contributions to a score.

    `name` describes a term: an item of the history, with the kind of the deed, or a feature. Shares
    below a tenth are summed in the last reason, which has the key "other", with the shares of
    features that are stock or price.
    """
    return reasons_of_scores(name, terms[None])[0]


def reasons_of_scores(
    name: Callable[[int], Mapping[str, Any]], terms: Floats
) -> list[list[dict[str, Any]]]:
    """Return the reasons of several scores, the rows of `terms`; see `shared_reasons`."""
    positive = np.maximum(terms, 0).astype(np.float64)
    totals = positive.sum(axis=1)
    # In thousandths, which are exact.
    remainders = np.where(totals > 0, 1000, 0).tolist()
    shares = positive * (1000 / np.maximum(totals, _TINY))[:, None]
    scores: list[list[dict[str, Any]]] = [[] for _ in terms]
    # Faster than `nonzero` of a matrix.
    large = np.flatnonzero(shares >= 1000 * _LEAST)
    values = shares.ravel()[large]
    order = np.argsort(-values, kind="stable")
    rows, columns = np.divmod(large[order], max(1, terms.shape[1]))
    thousandths = np.rint(values[order]).astype(np.int64)
    for row, term, share in zip(
        rows.tolist(),
        columns.tolist(),
        thousandths.tolist(),
        strict=True,
    ):
        reason = name(term)
        if not is_of_the_shop(reason.get("feature")):
            scores[row].append({**reason, "share": share / 1000})
            remainders[row] -= share
    for reasons, remainder in zip(scores, remainders, strict=True):
        if remainder > _NOTHING:
            reasons.append({"other": True, "share": remainder / 1000})
    return scores


@lru_cache(_NAMED)
def is_of_the_shop(feature: str | None) -> bool:
    """Return whether a feature is stock or price."""
    label = _LABEL.match(feature or "")
    return label is not None and _OF_THE_SHOP.search(label[1]) is not None


def in_words(reasons: Sequence[Mapping[str, Any]], language: Language) -> str:
    """Return reasons as a part of a sentence: "because you looked at A and bought B".

    Examples
    --------
    >>> looked = {"item": "1", "title": "A", "kind": "view", "share": 0.6}
    >>> bought = {"item": "2", "title": "B", "kind": "purchase", "share": 0.4}
    >>> in_words([looked, bought], "en"), in_words([looked, bought], "de")
    ('because you looked at A and bought B', 'weil Sie A angesehen und B gekauft haben')
    """
    items_by_deed: dict[str, list[str]] = {}
    features = []
    for reason in reasons:
        if reason.get("feature"):
            text = str(reason["feature"]).removeprefix("user: ")
            features.append(text.replace(" = ", ": "))
        elif reason.get("item") is not None:
            name = str(reason.get("title") or reason["item"])
            deed = _deed(reason["kind"], language)
            items = items_by_deed.setdefault(deed, [])
            items.append(name)
    clauses = []
    if items_by_deed:
        deeds = []
        for deed, items in items_by_deed.items():
            listed_items = _listed(items, language)
            deeds.append(deed.format(listed_items))
        clauses.append(_DONE[language].format(_listed(deeds, language)))
    if features:
        clauses.append(_FEATURES[language].format(_listed(features, language)))
    if not clauses:
        return _POPULAR[language]
    text = f", {_AND[language]} ".join(clauses)
    is_partial = any(
        reason.get("other") and reason["share"] >= _LEAST for reason in reasons
    )
    return _AMONG_OTHERS[language].format(text) if is_partial else text


def preferred_language(accepted: str) -> Language | None:
    """Return the language of a text for a header Accept-Language, None if it has neither.

    Examples
    --------
    >>> preferred_language("de-AT,de;q=0.9,en;q=0.5"), preferred_language("fr, en")
    ('de', 'en')
    """
    weights: dict[Language, float] = {"en": 0.0, "de": 0.0}
    for entry in accepted.split(","):
        tag, _, quality = entry.strip().partition(";")
        match = re.fullmatch(r"\s*q=([01](?:\.\d{0,3})?)\s*", quality)
        weight = 1.0 if match is None else float(match[1])
        for language in LANGUAGES:
            if tag.lower().split("-")[0] == language:
                weights[language] = max(weights[language], weight)
    if not any(weights.values()):
        return None
    return "de" if weights["de"] > weights["en"] else "en"


@lru_cache(_NAMED)
def _deed(kind: str, language: Language) -> str:
    """Return the words for what a user has done by an event of a kind."""
    return next(
        words[language]
        for pattern, words in _DEEDS
        if re.search(pattern, kind, re.IGNORECASE)
    )


def _listed(texts: Sequence[str], language: Language) -> str:
    """Return texts with commas and a word between the last two."""
    *first, last = texts
    if not first:
        return last
    return f"{', '.join(first)} {_AND[language]} {last}"
