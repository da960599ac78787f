"""The page in a real browser: its arithmetic, what a newcomer does, and whether all can use it."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import polars as pl
import pytest

from recsys import Recommender, together
from recsys.data.ratings import Ratings
from recsys.serve.responses import Responses
from recsys.serve.static_page import static_page

N_USERS, N_ITEMS = 60, 40
HOSTILE = "<svg/onload=document.title=1></script/x>"  # no tag by the rules of titles
TITLES = [
    HOSTILE,
    *[f"Film {place}, The" for place in range(1, N_ITEMS - 1)],
    "Film Amélie",
]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module", autouse=True)
def needs_chromium() -> None:
    if reason := chromium.why_no_chromium():
        pytest.skip(reason)


def table(*more: str) -> pl.DataFrame:
    titles = [*TITLES, *more]
    genres = [["Drama", "Comedy", "War"][place % 3] for place in range(len(titles))]
    years = [1950 + place for place in range(len(titles))]
    ids = [100 + place for place in range(len(titles))]
    return pl.DataFrame({"item": ids, "title": titles, "genre": genres, "year": years})


def people() -> pl.DataFrame:
    users = [*range(1, N_USERS + 1)]
    return pl.DataFrame(
        {"user": users, "taste": [["odd", "even"][user % 2] for user in users]}
    )


def ratings_of(
    *, implicit: bool = False, weighted: bool = False, featured: bool = False
) -> Ratings:
    """Ratings of items of two kinds, of which each user likes one."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(1, N_USERS + 1), 12)
    items = np.concatenate([rng.permutation(N_ITEMS)[:12] for _ in range(N_USERS)])
    likes = (users + items) % 2 == 0
    values = np.where(likes, 4.0, 1.5) + rng.choice([0, 0.5, 1.0], len(users))
    if weighted:
        values = rng.integers(1, 6, len(users)).astype(float)
    kept = likes if implicit and not weighted else np.ones(len(users), bool)
    frame = pl.DataFrame({"user": users, "item": 100 + items, "rating": values}).filter(
        kept
    )
    if weighted:
        frame = frame.rename({"rating": "count"})
    ratings = Ratings.from_frame(
        frame,
        weight="count" if weighted else None,
        implicit=implicit and not weighted,
        item_table=table(*["Not Yet Seen"] * featured),
        user_table=people(),
        duplicates="sum" if weighted else None,
    )
    if featured:
        from recsys.features.selection import with_features

        ratings = with_features(ratings, unrated=True)
    return ratings


@pytest.fixture(scope="module")
def films() -> Ratings:
    return ratings_of()


@pytest.fixture(scope="module")
def fitted(films: Ratings) -> Recommender:
    return Recommender("als", factors=4).fit(films)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # A site whose owner resolves its name to this computer, after the browser has loaded it.
    with chromium.browser(
        "--host-resolver-rules=MAP evil.example 127.0.0.1"
    ) as started:
        yield started


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    """Open one tab for all tests: a tab of its own for each takes thrice the time."""
    context = browser.new_context(viewport=WIDE, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(100_000)
    yield page
    context.close()


@pytest.fixture
def visit(tab: Any) -> Iterator[Callable[..., Any]]:
    """Open a page, and check at the end that nothing went wrong and no other host was wanted."""
    problems: list[str] = []
    homes = ["data:", "about:"]

    def on_console(message: Any) -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def on_error(error: Any) -> None:
        problems.append(str(error))

    def on_request(request: Any) -> None:
        if not request.url.startswith(tuple(homes)):
            problems.append(request.url)

    def opened(
        address: str, viewport: dict[str, int] = WIDE, color_scheme: str = "light"
    ) -> Any:
        home = "file://"
        if address.startswith("http"):
            home = address.split("/page")[0].rstrip("/")
        homes.append(home)
        tab.set_viewport_size(viewport)
        tab.emulate_media(color_scheme=color_scheme)
        tab.goto(address)
        tab.wait_for_selector("html[data-ready]")
        return tab

    tab.on("console", on_console)
    tab.on("pageerror", on_error)
    tab.on("request", on_request)
    yield opened
    tab.goto("about:blank")  # a service may end now
    tab.remove_listener("console", on_console)
    tab.remove_listener("pageerror", on_error)
    tab.remove_listener("request", on_request)
    assert not problems


@pytest.fixture
def static(tmp_path: Path) -> Callable[..., str]:
    def written(*models: Recommender, **options: Any) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.html"
        path.write_text(static_page(*models, **options).html, encoding="utf-8")
        return path.as_uri()

    return written


IALS = {"factors": 4, "regularization": 0.1, "unobserved_weight": 0.1}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, bool]]] = {
    "als with features": ("als", {"factors": 4}, {"featured": True}),
    "bayes": ("bayes", {"factors": 3, "iterations": 5}, {}),
    "popular": ("popular", {}, {}),
    "ials with features": ("ials", IALS, {"implicit": True, "featured": True}),
    "ials, counts": ("ials", IALS, {"weighted": True}),
    "ease of ratings": ("ease", {"regularization": 5.0}, {}),
    "spectral": ("spectral", {"factors": 4}, {"implicit": True}),
    "blend": (
        "blend",
        {"members": "spectral,ease", "weights": "2,1"},
        {"implicit": True},
    ),
}

ANSWERS = """async ([data, histories, users]) => {
  const source = await Embedded.open(data);
  return {
    new: await Promise.all(histories.map((each) => source.recommend(each, 100))),
    known: await Promise.all(users.map((each) => source.recommendTo(each, 100))),
  };
}"""


@pytest.fixture(scope="module")
def calculator(browser: Any, fitted: Recommender, tmp_path_factory: Any) -> Any:
    """Return a page whose functions compute for any model."""
    path = tmp_path_factory.mktemp("static") / "page.html"
    path.write_text(static_page(fitted).html, encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


@pytest.mark.parametrize("name", MODELS)
def test_recommends_what_the_model_recommends(name, calculator):
    model, parameters, kind = MODELS[name]
    ratings = ratings_of(**kind)
    recommender = Recommender(model, **parameters).fit(ratings)
    rng = np.random.default_rng(1)
    histories = []
    n_items = N_ITEMS + bool(kind.get("featured"))  # one more, which nobody has rated
    for size in (1, 2, 7, N_ITEMS - 1):
        chosen = rng.permutation(n_items)[:size] + 100
        values = (
            np.ones(size)
            if ratings.implicit and kind.get("implicit")
            else rng.choice([1.5, 3.0, 5.0], size)
        )
        histories.append(dict(zip(chosen.tolist(), values.tolist(), strict=True)))
    sent = [
        [{"item": str(k), "value": v} for k, v in each.items()] for each in histories
    ]
    data = re.search('id="data">([^<]*)<', static_page(recommender).html)[1]
    found = calculator.evaluate(ANSWERS, [data, sent, ["1", "7"]])
    expected = [recommender.fold_in(each) for each in histories]
    for answer, folded in zip(found["new"], expected, strict=True):
        listed = folded.recommend("new", n=100)
        if (
            model == "als" and "new" in listed.columns
        ):  # only a service scores items of no ratings
            listed = listed.filter(~pl.col("new")).with_columns(
                rank=pl.int_range(1, pl.len() + 1)
            )
        check_list(answer["items"], listed)
        first = answer["items"][0]
        check_reasons(first["because"], folded.explain("new", int(first["item"])))
    for answer, user in zip(found["known"], (1, 7), strict=True):
        listed = recommender.recommend(user, n=100)
        if model == "als" and "new" in listed.columns:
            listed = listed.filter(~pl.col("new"))
        check_list(answer["items"], listed)


def test_shows_lists_that_were_computed_in_advance(visit, static, films):
    fitted = Recommender("softimpute", regularization=3.0).fit(films)
    page = visit(static(fitted))
    assert page.get_by_role("heading", name="History of user 1").is_visible()
    assert listed(page) == fitted.recommend(1)["title"].to_list()
    assert page.get_by_label("Add what you like").is_hidden()


def check_reasons(because: list[dict[str, Any]], expected: pl.DataFrame) -> None:
    """Check what ratings add to a score, where no features take a part in it."""
    if "feature" in expected.columns:
        assert because
        return
    rows = expected.filter(pl.col("part") == "item")
    values = dict(zip(rows["item"], rows["contribution"], strict=True))
    scale = max(map(abs, values.values()))
    for reason in because:
        expected_value = values[int(reason["item"])]
        assert abs(reason["contribution"] - expected_value) <= 2e-3 * scale + 1e-6
    largest = sorted(map(abs, values.values()), reverse=True)[: len(because)]
    contributions = [abs(reason["contribution"]) for reason in because]
    np.testing.assert_allclose(contributions, largest, atol=2e-3 * scale + 1e-6)


def check_list(items: list[dict[str, Any]], expected: pl.DataFrame) -> None:
    """Check that a list has the scores of `expected`, and its order but for ties in rounding."""
    scores = np.array([each["score"] for each in items])
    known = dict(zip(expected["item"], expected["score"], strict=True))
    tolerance = 2e-4 * max(1e-3, np.abs(scores).max(initial=0))
    ids = [int(row["item"]) for row in items]
    assert {*ids} == set(known)
    new = (
        set(expected.filter(pl.col("new"))["item"])
        if "new" in expected.columns
        else set()
    )
    assert {id for id, row in zip(ids, items, strict=True) if row["new"]} == new
    np.testing.assert_allclose(scores, [known[id] for id in ids], atol=tolerance)
    np.testing.assert_allclose(scores, expected["score"].to_numpy(), atol=tolerance)
    assert [each["rank"] for each in items] == list(range(1, len(items) + 1))


def test_titles_are_found_as_by_the_service(calculator, fitted):
    texts = [
        "",
        "film",
        "the 3 film",
        "AMELIE",
        "amélie",
        "1",
        "105",
        "film 1",
        "img",
        "xyz",
        " 7,",
    ]
    script = (
        """(texts) => Promise.all(texts.map((text) => app.source.items(text, 20)))"""
    )
    answers = Responses(fitted, "als").catalogue
    for text, found in zip(texts, calculator.evaluate(script, texts), strict=True):
        expected = answers.items(text, 20)
        assert (found["items"], found["total"]) == (
            expected["items"],
            expected["total"],
        )
    assert answers.items("the 3 film", 20)["total"] == 12
    assert [each["title"] for each in answers.items("AMELIE", 20)["items"]] == [
        "Film Amélie"
    ]


def like(page: Any, text: str) -> None:
    page.get_by_label("Add what you like").fill(text)
    page.locator("#found [role=option]").first.wait_for()
    page.keyboard.press("Enter")


def listed(page: Any) -> list[str]:
    page.locator("#results[aria-busy=false]").wait_for()
    return page.locator("#results .ranked .title").all_inner_texts()


def test_a_newcomer_marks_titles_and_the_recommendations_follow(visit, static, fitted):
    page = visit(static(fitted))
    assert page.get_by_role(
        "heading", name="Begin with something you like"
    ).is_visible()
    like(page, "film 3, ")
    title = page.locator("#popular button").nth(2).inner_text()
    item = 100 + TITLES.index(title)
    page.get_by_role("button", name=f"Like {title}").first.click()
    assert (
        listed(page) == fitted.recommend(history={103: 5, item: 5})["title"].to_list()
    )
    assert (
        page.get_by_role("status").inner_text().startswith("10 recommendations; first")
    )
    page.get_by_label(f"Rating of {title}").select_option("1.5")
    assert (
        listed(page) == fitted.recommend(history={103: 5, item: 1.5})["title"].to_list()
    )
    assert page.locator(".moved").count() > 0
    page.get_by_role("button", name=f"Remove {title}").click()
    assert listed(page) == fitted.recommend(history={103: 5})["title"].to_list()
    reasons = page.locator(".ranked li").first.get_by_label("Because of").inner_text()
    assert reasons.startswith("Film 3, The")
    page.get_by_role("button", name="Clear").click()
    assert page.get_by_role(
        "heading", name="Begin with something you like"
    ).is_visible()


def test_what_if_a_user_had_not_rated_an_item(visit, static, fitted, films):
    page = visit(static(fitted))
    page.get_by_text("A user of the data").click()
    assert page.get_by_role("heading", name="History of user 1").is_visible()
    assert listed(page) == fitted.recommend(1)["title"].to_list()
    own = films.to_frame().filter(user=1)
    history = dict(zip(own["item"], own["rating"], strict=True))
    left_out = max(history, key=lambda item: (history[item], -item))
    title = TITLES[left_out - 100]
    page.get_by_role("button", name=f"Leave out {title}", exact=True).click()
    rest = {item: value for item, value in history.items() if item != left_out}
    assert listed(page) == fitted.recommend(history=rest)["title"].to_list()
    assert page.locator("#history-note").inner_text() == f"What if not: {title}"
    button = page.get_by_role("button", name=f"Put back {title}", exact=True)
    assert button.evaluate("(each) => each === document.activeElement")
    button.click()
    assert listed(page) == fitted.recommend(1)["title"].to_list()
    page.get_by_label("User", exact=True).fill("9999")
    page.get_by_role("button", name="Show", exact=True).click()
    assert (
        page.get_by_role("alert").inner_text().startswith("The page has no user 9999")
    )


@pytest.mark.parametrize("width", [390, 1200])
def test_long_ids_and_long_histories_can_be_seen(width, visit, static):
    user = "cf80f751-48b7-5541-346f-3293621d1733"
    pairs = pl.DataFrame({"user": [user] * 40 + ["u"], "item": [*range(40), 40]})
    known = Ratings.from_frame(pairs.with_columns(rating=pl.col("item") % 5 + 1.0))
    page = visit(
        static(Recommender("bias").fit(known)), viewport={"width": width, "height": 800}
    )
    assert page.locator("#find").get_attribute("placeholder") == "Search an item"
    page.get_by_text("A user of the data").click()
    page.get_by_label("User", exact=True).fill(user)
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_role("heading", name=f"History of user {user}").wait_for()
    assert page.locator("#user-id").evaluate(
        "(each) => each.scrollWidth <= each.clientWidth"
    )
    assert (
        page.locator("#history-note")
        .inner_text()
        .startswith("40 ratings in a list that scr")
    )


def test_an_item_has_a_panel_with_its_neighbours(visit, static, fitted):
    page = visit(static(fitted))
    like(page, "film 3, ")
    listed(page)
    page.locator(".ranked .title").nth(2).click()
    panel = page.get_by_role("dialog")
    shown = panel.get_by_role("heading", level=2).inner_text()
    item = 100 + TITLES.index(shown)
    near = fitted.similar_items([item], 10)
    assert panel.locator(".near .title").all_inner_texts() == near["title"].to_list()
    assert (
        "Drama" in panel.inner_text()
        or "Comedy" in panel.inner_text()
        or "War" in panel.inner_text()
    )
    panel.locator(".near .title").first.click()
    panel.get_by_role("heading", name=near["title"][0], exact=True).wait_for()
    panel.get_by_role("button", name="Like").click()
    page.keyboard.press("Escape")
    assert not panel.is_visible()
    assert near["title"][0] in page.locator("#history .title").all_inner_texts()


@pytest.fixture(scope="module")
def walks() -> Recommender:
    """Users who go from each film to the next one."""
    users = np.repeat(np.arange(N_USERS), 6)
    steps = np.tile(np.arange(6), N_USERS)
    columns = {
        "user": users,
        "item": 101 + (users + steps) % (N_ITEMS - 2),
        "time": 1_700_000_000 + 60 * steps,
    }
    ratings = Ratings.from_frame(pl.DataFrame(columns), item_table=table())
    return Recommender("next").fit(ratings)


@pytest.mark.parametrize("door", ["serve", "explore"])
def test_an_item_shows_what_comes_next(door, visit, static, walks, tmp_path):
    with ExitStack() as stack:
        if door == "explore":
            page = visit(static(walks))
        else:
            walks.save(tmp_path / "model")
            page = visit(stack.enter_context(serving(tmp_path / "model")))
        assert page.evaluate("app.can('next')")
        page.evaluate("itemPanel.open('105')")
        list_ = page.get_by_role("list", name="Often next")
        list_.wait_for()
        expected = walks.recommend(history=[105])["title"].to_list()
        assert expected[0] == "Film 6, The"
        assert list_.locator(".title").all_inner_texts() == expected


@pytest.mark.parametrize("door", ["serve", "explore"])
def test_an_item_shows_the_items_bought_together_with_it(
    door, visit, static, walks, tmp_path
):
    walks.save(tmp_path / "model")
    lines = [(order, item) for order in range(40) for item in (103, 104 + order % 20)]
    lines += [(order, item) for order in range(50, 80) for item in (105, 109)]
    frame = pl.DataFrame(lines, schema=["order", "item"], orient="row")
    pairs = str(tmp_path / "pairs.parquet")
    together(frame, "order").write_parquet(pairs)
    with ExitStack() as stack:
        if door == "explore":
            page = visit(static(walks, together=pairs))
        else:
            served = serving(tmp_path / "model", together=pairs)
            page = visit(stack.enter_context(served))
        page.evaluate("itemPanel.open('105')")
        list_ = page.get_by_role("list", name="Bought together")
        list_.wait_for()
        # Chance explains the other pairs.
        assert list_.locator(".title").all_inner_texts() == ["Film 9, The"]
        assert list_.locator(".score").inner_text().split()[-1] == "30"


def test_the_map_moves_by_pointer_and_keys_and_has_a_list(visit, static, fitted):
    page = visit(static(fitted))
    like(page, "film 3, ")
    page.get_by_role("tab", name="Map").click()
    canvas = page.locator("canvas")
    assert canvas.get_attribute("aria-label") == "Map of 40 items, 40 in sight"
    canvas.focus()
    for _ in range(5):
        page.keyboard.press("+")
    assert canvas.get_attribute("aria-label") != "Map of 40 items, 40 in sight"
    before = canvas.screenshot()
    page.keyboard.press("ArrowLeft")
    assert canvas.screenshot() != before
    page.keyboard.press("0")
    assert canvas.get_attribute("aria-label") == "Map of 40 items, 40 in sight"
    x, y = page.evaluate("mapView.drawn[0].at")
    title = page.evaluate("titleOf(mapView.drawn[0].item)")
    canvas.hover(position={"x": x, "y": y})
    assert title in page.locator("#tip").inner_text()
    canvas.click(position={"x": x, "y": y})
    assert (
        page.get_by_role("dialog").get_by_role("heading", level=2).inner_text() == title
    )
    page.keyboard.press("Escape")
    page.get_by_label("Filter the items").fill("film 12")
    page.get_by_role("button", name="Film 12, The").click()
    page.locator("#tip").get_by_text("Film 12, The").wait_for()


def test_tabs_move_with_arrows_and_the_spectrum_has_a_table(visit, static, fitted):
    page = visit(static(fitted))
    page.get_by_role("tab", name="Recommend").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("heading", name="Spectrum of als").is_visible()
    assert page.url.endswith("#spectrum")
    page.get_by_text("As a table").click()
    assert page.locator("tbody tr").count() == 4
    assert page.locator("figure rect").count() == 4


def test_a_model_with_non_negative_factors_shows_its_topics(visit, static, films):
    recommender = Recommender("als", factors=4, nonnegative=True).fit(films)
    page = visit(static(recommender))
    like(page, "film 3, ")
    listed(page)
    expected = recommender.recommend(history={103: 5})["title"].to_list()
    assert page.locator(".list .title").all_inner_texts() == expected
    page.get_by_role("tab", name="Spectrum").click()
    page.get_by_role("heading", name="Topics of als").wait_for()
    topics = recommender.topics(10).group_by("topic", maintain_order=True)
    texts = ["; ".join(items["title"]) for _, items in topics]
    assert page.locator(".topics li").all_inner_texts() == texts


def test_two_models_stand_side_by_side(visit, static, fitted, films):
    other = Recommender("bias").fit(films)
    page = visit(static(fitted, other))
    like(page, "film 3, ")
    listed(page)
    first, second = (page.locator(".list").nth(at).locator(".title") for at in (0, 1))
    mine, theirs = (
        each.recommend(history={103: 5})["title"].to_list() for each in (fitted, other)
    )
    assert first.all_inner_texts() == mine
    assert second.all_inner_texts() == theirs
    common = len({*mine} & {*theirs})
    assert (
        page.locator("#results .note").inner_text().strip()
        == f"{common} of 10 in both lists."
    )
    assert page.locator("li .shared").count() == 2 * common


def test_markup_in_titles_is_text(visit, static, fitted):
    page = visit(static(fitted))
    like(page, "100")  # the id of the hostile title
    assert page.locator("#history .title").inner_text() == HOSTILE
    assert page.title() == "Explore als"


CONTRAST = """() => {
  const parsed = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const { rgb, a } = parsed(getComputedStyle(each).backgroundColor);
      if (a > 0.99) return rgb;
    }
    return [255, 255, 255];
  };
  const unread = ".hidden, [disabled], noscript, script, style";
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own && !element.matches("input, select")) continue;
    const seen = element.checkVisibility({ visibilityProperty: true });
    if (!seen || element.closest(unread)) continue;
    const colour = getComputedStyle(element)[element.closest("svg") ? "fill" : "color"];
    const pair = [light(parsed(colour).rgb), light(behind(element))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) poor.push(`${element.outerHTML.slice(0, 80)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
NAMELESS = """() => [...document.querySelectorAll("button, input, select, canvas")]
  .filter((each) => each.checkVisibility() && !each.textContent.trim() && !each.labels?.length)
  .filter((each) => !each.getAttribute("aria-label"))
  .map((each) => each.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "dark"), (NARROW, "light")])
def test_everything_can_be_read_at_any_size(size, scheme, visit, static, fitted):
    page = visit(static(fitted), viewport=size, color_scheme=scheme)

    def check() -> None:
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.getAnimations().length") == 0

    check()
    page.get_by_text("A user of the data").click()
    page.locator("#history button.icon").first.click()
    listed(page)
    page.get_by_label("Add what you like").fill("film")
    page.locator("#found [role=option]").first.wait_for()
    check()
    page.keyboard.press("Escape")
    page.locator(".ranked .title").first.click()
    page.locator(".near .title").first.wait_for()
    check()
    page.keyboard.press("Escape")
    for tab in ("Map", "Spectrum"):
        page.get_by_role("tab", name=tab).click()
        check()
    page.get_by_role("tab", name="Map").focus()
    page.keyboard.press("ArrowLeft")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


USER_19, ITEM_19 = 1_234_567_890_123_456_780, 1_234_567_890_128_456_780


@pytest.fixture(scope="module")
def of_large_ids() -> Recommender:
    """Fit a model with ids of 19 digits, of which a browser's numbers round many to one."""
    rng = np.random.default_rng(4)
    users = np.repeat(np.arange(40), 8)
    items = np.concatenate([rng.permutation(25)[:8] for _ in range(40)])
    frame = pl.DataFrame({"user": USER_19 + users, "item": ITEM_19 + items})
    frame = frame.with_columns(rating=1.0 + (users * 3 + items * 5) % 5)
    titles = [f"Film {place}" for place in range(25)]
    films = pl.DataFrame({"item": range(ITEM_19, ITEM_19 + 25), "title": titles})
    ratings = Ratings.from_frame(frame, item_table=films)
    return Recommender("als", factors=3).fit(ratings)


@pytest.mark.parametrize("door", ["explore", "serve"])
def test_ids_of_19_digits_are_exact(door, visit, static, of_large_ids, tmp_path):
    with ExitStack() as stack:
        if door == "explore":
            page = visit(static(of_large_ids))
        else:
            of_large_ids.save(tmp_path / "model")
            page = visit(stack.enter_context(serving(tmp_path / "model")))
        like(page, "film 21")
        assert page.locator("#history .title").all_inner_texts() == ["Film 21"]
        expected = of_large_ids.recommend(history={ITEM_19 + 21: 5})["title"].to_list()
        assert listed(page) == expected
        page.locator("#history .title").click()
        facts = page.get_by_role("dialog")
        facts.locator(".near .title").first.wait_for()
        assert facts.get_by_role("heading", level=2).inner_text() == "Film 21"
        assert str(ITEM_19 + 21) in facts.inner_text()
        near = of_large_ids.similar_items([ITEM_19 + 21], 10)["title"].to_list()
        assert facts.locator(".near .title").all_inner_texts() == near
        page.keyboard.press("Escape")
        page.get_by_text("A user of the data").click()
        shown = page.locator("datalist option").evaluate_all(
            "(all) => all.map((o) => o.value)"
        )
        assert len({*shown}) == 40
        assert {*map(int, shown)} == {*range(USER_19, USER_19 + 40)}
        for user in (USER_19 + 5, USER_19 + 6):
            page.get_by_label("User", exact=True).fill(str(user))
            page.get_by_role("button", name="Show", exact=True).click()
            page.get_by_role("heading", name=f"History of user {user}").wait_for()
            assert listed(page) == of_large_ids.recommend(user)["title"].to_list()


@contextmanager
def serving(*models: Any, **settings: Any) -> Iterator[str]:
    """Serve models in this process, and give the address."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    from recsys.serve import create_app
    from recsys.serve.settings import Limits

    # A busy machine may need longer for an answer than a service allows.
    limits = Limits(seconds=100)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_app(*map(str, models), limits=limits, **settings)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


def test_the_service_shows_the_same_page(visit, fitted, films, saved, tmp_path):
    fitted.save(tmp_path / "a")
    Recommender("bias").fit(films).save(tmp_path / "b")
    settings = {"model_b": str(tmp_path / "b"), "index": str(saved["index"])}
    with serving(tmp_path / "a", **settings) as address:
        page = visit(address)
        assert page.get_by_role("heading", name="Explore als and bias").is_visible()
        like(page, "film 3, ")
        listed(page)
        first = page.locator(".list").first.locator(".title").all_inner_texts()
        assert first == fitted.recommend(history={103: 5})["title"].to_list()
        page.get_by_role("button", name="Clear").click()
        page.get_by_text("A user of the data").click()
        page.get_by_label("User", exact=True).fill("7")
        page.get_by_role("button", name="Show", exact=True).click()
        page.get_by_role("heading", name="History of user 7").wait_for()
        listed(page)
        first = page.locator(".list").first.locator(".title").all_inner_texts()
        assert first == fitted.recommend(7)["title"].to_list()
        page.locator(".ranked .title").first.click()
        page.locator(".near .title").first.wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="Map").click()
        assert (
            page.locator("canvas").get_attribute("aria-label")
            == "Map of 40 items, 40 in sight"
        )
        page.get_by_role("tab", name="Search").click()
        page.get_by_placeholder("A few words").fill("the nurse of a hospital")
        page.get_by_role("button", name="Search", exact=True).click()
        page.locator("#texts li").first.wait_for()
        page.goto(f"{address}docs#unknown-id")
        page.get_by_role("link", name="GET /v1/similar/{item}").click()
        route = page.locator(
            "section", has=page.get_by_role("heading", name="/v1/similar/{item}")
        )
        assert "n integer, by default 10 Number of items." in " ".join(
            route.locator("table").inner_text().split()
        )
        route.get_by_label("Address").fill("v1/similar/103?n=1")
        route.get_by_role("button", name="Send").click()
        route.get_by_text("200", exact=False).first.wait_for()
        sent = page.locator(
            "section", has=page.get_by_role("heading", name="POST/v1/recommend")
        )
        assert '"users"' in sent.get_by_label("Body").input_value()
        assert page.locator("#problems #unknown-id").is_visible()


def test_a_service_with_a_key_of_a_model_that_knows_its_own_users(
    browser, films, tmp_path
):
    random = Recommender("random").fit(films)
    random.save(tmp_path / "model")
    with serving(tmp_path / "model", api_key="open sesame") as address:
        page = browser.new_page()
        page.goto(address)
        for key in ("simsim", "open sesame"):
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Open").click()
        page.get_by_role("heading", name="History of user").wait_for()
        assert len(listed(page)) == 10
        assert not page.get_by_label("Add what you like").is_visible()
        assert not page.get_by_role("button", name="Leave out").count()
        page.get_by_role("tab", name="Map").click()
        assert "no vectors of items" in page.locator("#map-note").inner_text()
        page.close()


def test_the_page_asks_for_another_key_if_one_is_for_lists_or_has_changed(
    browser, fitted, tmp_path
):
    fitted.save(tmp_path / "model")
    with serving(
        tmp_path / "model", api_key=("old", "new"), list_key="shop"
    ) as address:
        page = browser.new_page()
        page.goto(address)
        page.get_by_label("API key").fill("shop")
        page.get_by_role("button", name="Open").click()
        page.get_by_text("This key is for lists of items only").wait_for()
        page.get_by_label("API key").fill("old")
        page.get_by_role("button", name="Open").click()
        page.get_by_text("A user of the data").click()
        page.locator("#results .ranked .title").nth(9).wait_for()
        page.evaluate("sessionStorage.setItem('recsys-key', 'revoked')")
        page.get_by_role("button", name="Another").click()
        page.get_by_text("That is not the key of this service").wait_for()
        page.get_by_label("API key").fill("new")
        page.get_by_role("button", name="Open").click()
        page.get_by_role("heading", name="History of user 2", exact=True).wait_for()
        assert page.locator("form.key").count() == 0
        page.close()


def test_without_a_key_others_see_the_page_for_somebody_new(browser, fitted, tmp_path):
    fitted.save(tmp_path / "model")
    with serving(tmp_path / "model", host="0.0.0.0") as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        assert not page.get_by_text("A user of the data").is_visible()
        note = page.locator("#users-note")
        assert note.inner_text().startswith(
            "Data of users need an API key, and there is none"
        )
        like(page, "film 3, ")
        assert listed(page) == fitted.recommend(history={103: 5})["title"].to_list()
        page.close()


READ = """async (address) => {
  const answers = [];
  for (const mode of ["cors", "no-cors"]) {
    const answer = await fetch(`${address}v1/users`, { mode }).catch(() => null);
    answers.push(answer ? await answer.text() : "");
  }
  return answers.join();
}"""


def test_no_other_site_reads_data_of_users_through_a_browser(
    browser, fitted, saved, tmp_path
):
    fitted.save(tmp_path / "model")
    with ExitStack() as stack:
        address = stack.enter_context(serving(tmp_path / "model"))
        elsewhere = stack.enter_context(serving(saved["index"]))
        page = browser.new_page()
        page.goto(address)
        assert '"users":["' in page.evaluate(READ, address)
        rebound = address.replace("127.0.0.1", "evil.example")
        page.goto(rebound)  # the service itself, under a name of somebody else
        page.wait_for_selector("html[data-ready]")
        assert (
            "loopback name in the address" in page.locator("#users-note").inner_text()
        )
        assert '"users"' not in page.evaluate(READ, rebound)
        page.goto(f"{elsewhere}docs")  # a site on another port, and of another name
        for name in ("127.0.0.1", "localhost"):
            target = address.replace("127.0.0.1", name)
            assert '"users"' not in page.evaluate(READ, target)
        page.close()


def test_a_service_of_documents_has_one_view(browser, saved):
    with serving(saved["index"]) as address:
        page = browser.new_page()
        page.goto(address)
        page.get_by_placeholder("A few words").fill("doctor")
        page.keyboard.press("Enter")
        page.locator("#texts li").first.wait_for()
        assert page.get_by_role("tab").all_inner_texts() == ["Search"]
        page.close()


def test_the_keyboard_is_enough(visit, static, fitted):
    page = visit(static(fitted))

    def focused() -> str:
        named = (
            "(each) => each.getAttribute('aria-label') ?? each.textContent ?? each.id"
        )
        text: str = page.evaluate(f"({named})(document.activeElement)")
        return text

    page.keyboard.press("Tab")
    assert focused() == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("film 1")
    page.locator("#found [role=option]").first.wait_for()
    page.keyboard.press("ArrowDown")
    active = page.get_by_label("Add what you like").get_attribute(
        "aria-activedescendant"
    )
    chosen = page.locator(f"#{active} span").inner_text()
    page.keyboard.press("Enter")
    assert page.locator("#history .title").all_inner_texts() == [chosen]
    for _ in range(4):
        page.keyboard.press("Tab")
    assert focused() == f"Remove {chosen}"
    page.keyboard.press("Tab")  # the popular ones
    page.keyboard.press("Enter")
    assert focused().startswith("Like ")
    page.locator(".ranked > li").nth(1).get_by_role("button", name="Like").focus()
    page.keyboard.press("Enter")
    assert page.locator("#history li").count() == 3
    second = page.locator(".ranked > li").nth(1).locator(".title").inner_text()
    assert focused() == f"Like {second}"
