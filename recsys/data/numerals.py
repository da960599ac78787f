"""Numbers in texts: decimal commas, thousands, durations, and amounts with units."""

from __future__ import annotations

import polars as pl

_NUMERIC = r"^[-+]?[\d.,]+$"
_GROUPED = r"^[-+]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?$"
_SHORT = r"^[-+]?\d{1,3}(?:,\d+)?$"
_UNGROUPED = r"^[-+]?\d+(?:,\d+)?$"
_DECIMAL_COMMA = r"^([-+]?\d*),(\d+)$"
_COMMAS = r"^[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?$"
_SURELY_COMMAS = r",\d{3}[.,]\d"
_CENTS_AFTER_COMMA = r",\d{1,2}$"
# Hours, minutes and seconds: 1:02:03 or 2:03, 1h 2m 3s, and ISO 8601.
_DURATIONS = (
    r"^\s*(?:(\d+):)?(\d{1,3}):([0-5]\d(?:\.\d+)?)\s*$",
    r"^(?i)\s*(?:(\d+(?:\.\d+)?)\s*(?:h|hrs?|hours?|std)\.?)?[\s,]*"
    r"(?:(\d+(?:\.\d+)?)\s*(?:m|mins?|minutes?)\.?)?[\s,]*"
    r"(?:(\d+(?:\.\d+)?)\s*(?:s|secs?|seconds?)\.?)?\s*$",
    r"^\s*PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?\s*$",
)
_METRES = r"^[\d.\s]+m\s*$"  # or minutes, or millions
_STARS = r"^((?:[\x{2605}\x{2b50}]\x{fe0f}?)+)([\x{bc}-\x{be}]?)[\s\x{2606}]*$"
_CODES = (
    "EUR|USD|GBP|CHF|SEK|NOK|DKK|PLN|CZK|HUF|JPY|CNY|INR|BRL|CAD|AUD|NZD|MXN|TRY|KRW"
)
# A number and its unit or scale, as in "4 stars", "80%", "$5.20", "4/5" and "4 out of 5".
_WITH_UNIT = (
    rf"^\s*([-+\x{{2212}}]?)\s*([A-Za-z]{{0,3}}\p{{Sc}}|{_CODES}|Rs\.?|kr\.?)?\s*"
    r"([-+\x{2212}]?)([0-9]{1,3}(?:[\s_'\x{2019}][0-9]{3})+(?:[.,][0-9]+)?|[0-9]+(?:[.,][0-9]+)*|[.,][0-9]+|)"
    r"([\x{bc}-\x{be}]?)\s*"
    r"(\p{Sc}|%|\p{So}\x{fe0f}?|\p{L}+\.?|(?:/|(?:out )?of\s)\s*[0-9]{1,3})?\s*$"
)
_PLURAL = r"(?:e?s|e)?\.?$"  # stars, pieces, Sterne
_UNCLEAR = r"^[-+\x{2212}]?[\d.,_]+$"
_FRACTIONS = {
    "\u00bc": 0.25,
    "\u00bd": 0.5,
    "\u00be": 0.75,
}
_MULTIPLIERS = [
    "k",
    "m",
    "b",
    "t",
    "bn",
    "mn",
    "tsd",
    "mio",
    "mrd",
    "lakh",
    "crore",
]
_SAME_UNITS = {
    "\u20ac": "eur",
    "\u00a3": "gbp",
    "us$": "$",
    "usd": "$",
}


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


def number_texts(texts: pl.Series) -> tuple[pl.Series, list[str]]:
    """Return texts of numbers in the form of programs, and remarks on what they mean.

    Texts stay as they are where the column does not tell what they mean.

    Examples
    --------
    >>> numbers, remarks = number_texts(pl.Series(["$1,250.50", "$980"]))
    >>> numbers.to_list(), remarks
    (['1250.50', '980'], ['amounts: $1,250.50 is 1250.5'])
    """
    texts, remark = decimal_points(texts, commas=False)
    remarks = [remark]
    for converted in (seconds_of_durations, _amounts):
        if texts.cast(pl.Float64, strict=False).null_count() > texts.null_count():
            texts, remark = converted(texts)
            remarks.append(remark)
    return texts, list(filter(None, remarks))


def seconds_of_durations(texts: pl.Series) -> tuple[pl.Series, str]:
    """Return durations as texts of their seconds, and a remark on them.

    Texts stay as they are unless most are durations.

    Examples
    --------
    >>> numbers, remark = seconds_of_durations(pl.Series(["3:45", "1h 10s", None]))
    >>> numbers.to_list(), remark
    (['225.0', '3610.0', None], 'durations in seconds: 3:45 is 225')
    """
    totals = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(texts))
    for form in _DURATIONS:
        groups = texts.str.extract_groups(form)
        parts = groups.struct.unnest().cast(pl.Float64)
        has_part = pl.any_horizontal(pl.all().is_not_null())
        is_other = ~parts.select(has_part).to_series()
        hours, minutes, seconds = parts.fill_null(0)
        sums = 3600 * hours + 60 * minutes + seconds
        totals = totals.zip_with(is_other, sums)
    # Next to 1h 43m, a 90 may be of minutes.
    in_words = texts.str.contains("(?i)[hms]").any()
    if in_words and (texts.cast(pl.Float64, strict=False) != 0).any():
        return texts, ""
    is_duration = totals.is_not_null()
    n_durations = int(is_duration.sum())
    n_texts = len(texts) - texts.null_count()
    if 2 * n_durations <= n_texts or texts.str.contains(_METRES).sum() == n_durations:
        return texts, ""
    first = is_duration.arg_max() or 0
    remark = f"durations in seconds: {texts[first].strip()} is {totals[first]:g}"
    numbers = totals.cast(pl.String).zip_with(is_duration, texts)
    return numbers.alias(texts.name), remark


def _amounts(texts: pl.Series) -> tuple[pl.Series, str]:
    """Return amounts as texts of their numbers, and a remark on their unit.

    Texts stay as they are unless most have the same unit, or the others have none.
    """
    parts = _parts(texts)
    is_amount = parts["number"].is_not_null()
    is_amount &= texts.cast(pl.Float64, strict=False).is_null()
    is_amount &= ~texts.str.contains(_UNCLEAR)
    units = parts["unit"].filter(is_amount).unique().sort()
    unit = units[-1] if len(units) else None
    n_with_unit = int((parts["unit"] != "").sum())
    n_texts = len(texts) - texts.null_count()
    is_rare = n_with_unit and 2 * n_with_unit <= n_texts
    has_others = not units.is_in(["", unit]).all()
    if unit is None or is_rare or has_others or unit in _MULTIPLIERS:
        return texts, ""
    numbers = parts["number"].filter(is_amount)
    with_commas = numbers.filter(numbers.str.contains(",", literal=True))
    is_before = parts["is_before"].filter(is_amount).all()
    if is_before and with_commas.str.contains(_COMMAS).all():
        numbers = numbers.str.replace_all(",", "", literal=True)
    else:
        has_decimal_commas = with_commas.str.contains(_CENTS_AFTER_COMMA).any()
        numbers, _ = decimal_points(numbers, commas=has_decimal_commas)
    if numbers.cast(pl.Float64, strict=False).null_count():
        return texts, ""
    first = is_amount.arg_max() or 0
    example = f"{texts[first].strip()} is {float(numbers[0]):g}"
    # Series.scatter changes its series.
    converted = texts.clone().scatter(is_amount.arg_true(), numbers)
    return converted, f"amounts: {example}"


def _parts(texts: pl.Series) -> pl.DataFrame:
    """Return the number, unit and place of the unit of each text; null if it has no number.

    A number has its commas and points, and no spaces. Stars are counted.
    """
    column = pl.col("text")
    stars = column.str.extract_groups(_STARS)
    groups = column.str.extract_groups(_WITH_UNIT)
    is_in_stars = column.str.contains(_STARS)

    def group(number: int) -> pl.Expr:
        return groups.struct.field(str(number)).fill_null("")

    n_stars = stars.struct.field("1").str.count_matches("[\u2605\u2b50]")
    digits = group(4).str.replace_all(r"[\s_'\x{2019}]", "")
    whole = pl.when(is_in_stars).then(n_stars.cast(pl.String)).otherwise(digits)
    fraction = pl.when(is_in_stars).then(stars.struct.field("2")).otherwise(group(5))
    share = fraction.replace_strict(_FRACTIONS, default=None)
    with_fraction = whole.cast(pl.Float64, strict=False).fill_null(0) + share
    number = with_fraction.cast(pl.String).fill_null(whole)
    sign = pl.concat_str(group(1), group(3)).str.replace("\u2212", "-")
    suffix = pl.when(is_in_stars).then(pl.lit("\u2605")).otherwise(group(6))
    unit = pl.concat_str(group(2), suffix).str.to_lowercase()
    unit = unit.str.replace(r"^(?:/|(?:out )?of)\s*", "/")
    unit = unit.str.replace(_PLURAL, "").replace(_SAME_UNITS)
    return (
        texts.alias("text")
        .to_frame()
        .select(
            number=pl.when(number != "").then(pl.concat_str(sign, number)),
            unit=pl.when(number != "").then(unit).otherwise(pl.lit("")),
            is_before=group(2) != "",
        )
    )


def in_other_unit(text: str, texts: pl.Series) -> str | None:
    """Return the first amount of a column in another unit than a text, or None.

    Examples
    --------
    >>> in_other_unit("3 kg", pl.Series(["2", "3 kg", "500 g"]))
    '500 g'
    """
    unit = _parts(pl.Series([text]))["unit"][0]
    units = _parts(texts)["unit"]
    others = texts.filter((units != "") & (units != unit))
    if not unit or not len(others):
        return None
    return str(others[0])


def plain_number(text: str) -> str | None:
    r"""Return the number that a text means with its unit, scale or stars; None if not one.

    Examples
    --------
    >>> [plain_number(text) for text in ("4 stars", "80%", "4,5/5", "1 250", "4\u00bd", "4K")]
    ['4', '80', '4.5', '1250', '4.5', None]
    """
    number, unit, _ = _parts(pl.Series([text])).row(0)
    if number is None or unit in _MULTIPLIERS:
        return None
    plain = str(number).replace(",", ".")
    return plain if plain.count(".") < 2 else None
