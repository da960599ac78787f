"""The report: one file, complete, escaped, and drawn from the numbers."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ratings import Ratings
from recsys.evaluation import evaluate, html_report, k_fold, random_split, time_split
from recsys.evaluation.report import number, ticks
from recsys.evaluation.results import best_model, only, significantly_worse
from recsys.models.registry import make_model

HOSTILE = "</svg><script>alert('x')</script>&\"<b"
VOID = {"meta"}


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(1)
    likes = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 30))
    values = np.clip(np.round(3 + likes + 0.3 * rng.normal(size=likes.shape)), 1, 5)
    values[rng.random(values.shape) < 0.5] = np.nan
    return Ratings.from_matrix(values.astype(np.float32))


@pytest.fixture(scope="module")
def found(ratings):
    models = {
        "als": make_model("als", factors=2),
        HOSTILE: "popular",
        "random": "random",
    }
    return evaluate(models, random_split(ratings, 0.2), [1, 5, 10], resamples=50)


@pytest.fixture(scope="module")
def page(found):
    parameters = {"als": {"factors": 2}, HOSTILE: {"note": HOSTILE}}
    return html_report(
        found, parameters=parameters, command=f"recsys {HOSTILE}", versions={"a": "1"}
    )


class Outline(HTMLParser):
    """The elements of a page, checked for balance; texts by kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [
            v for k, v in attributes if k in ("src", "href", "srcset", "data")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open[-1:]:
            self.texts.setdefault(tag, []).append(data)


def test_the_page_is_whole_and_needs_nothing_else(page):
    outline = Outline(page)
    assert outline.links == []
    assert not {"script", "link", "img", "iframe", "object", "b"} & set(outline.tags)
    assert not re.search(r"url\(|@import|https?:", page)
    assert "prefers-color-scheme: dark" in page


def test_labels_are_escaped_everywhere(page):
    assert "<script" not in page
    assert HOSTILE in Outline(page).texts["span"]
    assert f"recsys {HOSTILE}" in Outline(page).texts["pre"]


def test_the_best_model_is_escaped_too(ratings):
    models = {HOSTILE: "bias", f"{HOSTILE}2": "popular"}
    assert "<script" not in html_report(
        evaluate(models, random_split(ratings, 0.2), 5, resamples=20)
    )


def test_charts_are_xml(page):
    charts = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(charts) > 20
    for chart in charts:
        drawing = ElementTree.fromstring(chart)
        assert drawing.get("aria-label")
        numbers = re.findall(r'="(-?[\d.]+|nan|inf)[",]', chart)
        assert all(-1 <= float(each) <= 460 for each in numbers)


def test_all_that_was_asked_for_is_there(page, found):
    heads = Outline(page).texts["h2"]
    assert heads == [
        "Results",
        "Intervals",
        "By length of the recommendations",
        "Reliability",
        "Accuracy and popularity",
        "Rating residuals",
        "Learning curves",
        "Differences between the models",
        "The split",
        "How to repeat this evaluation",
    ]
    for metric in ("rmse", "mae", "ndcg@10", "coverage@10", "popularity_bias@10"):
        for value in found.table[metric].drop_nulls():
            assert f"{value:.4f}".replace("-", "−") in page
    assert found.fingerprint in page
    assert "{&#34;factors&#34;: 2}" in page
    assert found.splits[0].description in page


def test_the_best_of_a_row_is_marked(found):
    page = html_report(found)
    row = re.search(r"<tr><th>rmse .*?</tr>", page, re.S).group()
    cells = re.findall(r"<td(?: class=\"(.*?)\")?>(.*?)(?:<span|</td>)", row)
    assert [kind for kind, _ in cells] == ["number best", "number", "number"]
    assert cells[1][1].endswith("*") == (
        (HOSTILE, "rmse") in significantly_worse(found)
    )
    assert cells[2][1] == "–"
    novelty = re.search(r"<tr><th>novelty@10 .*?</tr>", page, re.S).group()
    assert "best" not in novelty


def test_the_verdict(found):
    assert best_model(found, "rmse") == "als"
    assert best_model(found, "novelty@10") is None
    frame = found.comparisons
    said = {}
    for name, value in (("close", 0.2), ("far", 0.001)):
        changed = replace(found, comparisons=frame.with_columns(adjusted=pl.lit(value)))
        said[name] = html_report(changed)
    assert "<strong>als</strong>" in said["far"]
    assert "; significantly better than the other.</li>" in said["far"]
    assert "; not significantly better than &lt;/svg&gt;" in said["close"]


def test_what_there_is_not_is_left_out(ratings):
    implicit = replace(ratings.with_values(1), implicit=True)
    split = random_split(implicit, 0.2)
    heads = Outline(html_report(evaluate(["popular"], split, 5, resamples=0))).texts[
        "h2"
    ]
    assert heads == [
        "Results",
        "Intervals",
        "Reliability",
        "Accuracy and popularity",
        "The split",
        "How to repeat this evaluation",
    ]


def test_describes_folds_and_sampled_candidates(ratings):
    folds = list(k_fold(ratings, 3))
    page = html_report(
        evaluate(["bias", "popular"], folds, [2, 4], candidates=5, resamples=20)
    )
    assert "3 folds, each in turn" in page
    assert "ndcg@4 (sampled)" in page
    assert "rmse (sampled)" not in page
    assert "SAMPLED: each user" in page


def test_only_some_lengths(found):
    part = only(found, [5])
    assert part.settings.ns == (5,)
    assert set(part.metrics["n"]) == {5, None}
    assert "ndcg@5" in part.table.columns
    assert "ndcg@10" not in [*part.table.columns, *part.per_user.columns]
    assert only(found, (10, 5, 1)).table.equals(found.table)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_within(low, width):
    high = low + width
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return
    found = ticks(low, high)
    assert 2 <= len(found) <= 9
    assert all(low - width * 1e-6 <= each <= high + width * 1e-6 for each in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.05, "−0.05"),
        (12345.6, "12,346"),
        (1.5e7, "1.5e+07"),
        (3e-6, "3e−06"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_a_model_keeps_its_colour(ratings):
    """Random has no rmse; the colours of the others are those of the legend all the same."""
    page = html_report(
        evaluate(["random", "popular"], random_split(ratings, 0.2), 5, resamples=0)
    )
    chart = re.search(r'<svg[^>]*aria-label="rmse ↓">.*?</svg>', page, re.S).group()
    assert "s1 dot" in chart
    assert "s0 dot" not in chart


def test_digits_of_seeds_and_times_are_not_grouped(ratings):
    timed = replace(ratings, seconds=np.arange(ratings.n_ratings) + 1_600_000_000)
    split = time_split(timed, 0.2)
    found = evaluate(
        ["popular"], split, 3, metrics=["recall"], resamples=10, random_state=12345
    )
    text = html_report(found)
    assert f"<td>{split.parameters['cut']}</td>" in text
    assert "<td>12345</td>" in text


def test_charts_of_equal_values(ratings):
    """A single point, or equal ones, still have an axis."""
    models = {f"{name} {'long name ' * 9}": "popular" for name in "abcdefghij"}
    page = html_report(evaluate(models, random_split(ratings, 0.2), 1, resamples=0))
    charts = [
        ElementTree.fromstring(chart)
        for chart in re.findall(r"<svg.*?</svg>", page, re.S)
    ]
    assert len(charts) > 5
    names = [
        e
        for chart in charts
        for e in chart.iter("text")
        if "name" in e.get("class", "")
    ]
    assert 1 <= len(names) <= 12, "names that would overlap are left out"
    assert "again" in page, "more than eight models have dashes"


def test_without_jinja(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        ImportError, match=r"needs Jinja2; install .*\[report\]' \(in a clone: pip"
    ):
        html_report(found)


def test_implicit_data_are_interactions_in_what_people_read(ratings):
    implicit = replace(ratings.with_values(1), implicit=True)
    split = random_split(implicit, 0.2)
    found = evaluate(["popular", "random"], split, n=5)
    assert "interactions" in found.held_out
    for text in (repr(found), found.held_out, html_report(found)):
        assert not re.search(r"\b[Rr]atings?\b", re.sub(r"<[^>]+>", " ", text))
