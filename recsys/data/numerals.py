"""Numbers in texts: decimal commas, thousands of spreadsheets, and durations."""

from __future__ import annotations

import re

import polars as pl

_NUMERIC = r"^[-+]?[\d.,]+$"
_GROUPED = r"^[-+]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?$"
_SHORT = r"^[-+]?\d{1,3}(?:,\d+)?$"
_UNGROUPED = r"^[-+]?\d+(?:,\d+)?$"
_DECIMAL_COMMA = r"^([-+]?\d*),(\d+)$"
_COMMAS = r"^[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?$"
_SURELY_COMMAS = r",\d{3}[.,]\d"
_DURATION = r"^\s*(?:(\d+):)?(\d{1,3}):([0-5]\d(?:\.\d+)?)\s*$"
_STARS = re.compile("[\u2605\u2b50]\ufe0f?")
_SPACED = re.compile(r"(?<=\d)[\s_'\u2019](?=\d{3}\b)")
# A number and its unit or scale, as in "4 stars", "80%", "4/5" and "4 out of 5".
_WITH_UNIT = re.compile(
    r"[^\w.,+\-\[({]*([-+]?\d+(?:[.,]\d+)?)(?:\s*(?:/|of|out of)\s*\d+)?[^\d/:.,-]*",
    re.ASCII,
)


def are_numeric(texts: pl.Series) -> bool:
    """Return whether all texts have digits, points and commas only; nulls do not count."""
    return bool(texts.str.contains(_NUMERIC).all())


def have_groups(texts: pl.Series) -> bool:
    """Return whether a text may have points between thousands, such as 1.250."""
    return bool(texts.str.contains(_GROUPED).any())


def decimal_points(texts: pl.Series, *, commas: bool) -> tuple[pl.Series, str]:
    """Return texts of numbers in the form of programs, and a remark on their points.

    Points are between thousands where no other number has another form: 1.250 next to
    980, which would be 980.000 if numbers had three decimals. Commas are between thousands
    where a number has a point after one, as in 1,250.50. Texts in another form stay as
    they are.

    Parameters
    ----------
    texts : Series of String
    commas : bool
        Whether decimal commas are usual in the source, such as with semicolons. If not,
        only a point before an ending zero is sure not to be a decimal point.

    Examples
    --------
    >>> numbers, remark = decimal_points(pl.Series(["1.250", "980"]), commas=True)
    >>> numbers.to_list(), remark
    (['1250', '980'], 'points between thousands: 1.250 is 1250')
    """
    numeric = texts.filter(texts.str.contains(_NUMERIC))
    if numeric.str.contains(_SURELY_COMMAS).any():
        with_commas = numeric.filter(numeric.str.contains(",", literal=True))
        if with_commas.str.contains(_COMMAS).all():
            example = with_commas[0]
            remark = (
                f"commas between thousands: {example} is {example.replace(',', '')}"
            )
            return texts.str.replace_all(",", "", literal=True), remark
    is_grouped = numeric.str.contains(_GROUPED)
    has_commas = bool(numeric.str.contains(",", literal=True).any())
    remark = ""
    if is_grouped.any() and (commas or not has_commas):
        example = numeric.filter(is_grouped)[0]
        others = numeric.filter(~is_grouped)
        form = _UNGROUPED if has_commas else _SHORT
        ends_in_zero = bool(numeric.str.contains(r"\.\d\d0$").any())
        is_sure = has_commas
        if len(others):
            is_sure |= commas or ends_in_zero
        if is_sure and others.str.contains(form).all():
            texts = texts.str.replace_all(".", "", literal=True)
            number = example.replace(".", "")
            number = number.replace(",", ".")
            remark = f"points between thousands: {example} is {number}"
        elif commas and example.count(".") == 1:
            remark = f"decimal points: {example} is {float(example):g}"
    if commas:
        texts = texts.str.replace(_DECIMAL_COMMA, "$1.$2")
    return texts, remark


def seconds_of_durations(texts: pl.Series) -> tuple[pl.Series, str]:
    """Return durations as texts of their seconds, and a remark on them.

    Texts stay as they are unless most are durations.

    Examples
    --------
    >>> numbers, remark = seconds_of_durations(pl.Series(["3:45", "1:00:10", None]))
    >>> numbers.to_list(), remark
    (['225.0', '3610.0', None], 'durations in seconds: 3:45 is 225')
    """
    parts = texts.str.extract_groups(_DURATION).struct.unnest()
    hours = parts["1"].cast(pl.Float64).fill_null(0)
    minutes = parts["2"].cast(pl.Float64)
    seconds = parts["3"].cast(pl.Float64)
    totals = 3600 * hours + 60 * minutes + seconds
    is_duration = totals.is_not_null()
    n_texts = len(texts) - texts.null_count()
    if 2 * is_duration.sum() <= n_texts:
        return texts, ""
    first = is_duration.arg_max() or 0
    remark = f"durations in seconds: {texts[first].strip()} is {totals[first]:g}"
    return totals.cast(pl.String).zip_with(is_duration, texts), remark


def plain_number(text: str) -> str | None:
    r"""Return the number that a text means with its unit, scale or stars; None if not one.

    Examples
    --------
    >>> [plain_number(text) for text in ("4 stars", "80%", "4,5/5", "1 250", "4\u00bd")]
    ['4', '80', '4.5', '1250', None]
    """
    if any(sign.isnumeric() and not sign.isascii() for sign in text):
        return None  # such as a half after a 4
    unrated = _STARS.sub("", text).strip(" \u2606")
    if unrated != text and not unrated:
        return str(len(_STARS.findall(text)))
    # Typesetters write a minus sign that is not a hyphen.
    plain = _SPACED.sub("", text.replace("\u2212", "-"))
    match = _WITH_UNIT.fullmatch(plain)
    return None if match is None else match[1].replace(",", ".")
