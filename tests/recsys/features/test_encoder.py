"""Features as sparse blocks: what each kind of column becomes, for known rows and new ones."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.features import Features
from recsys.data.ids import Ids
from recsys.data.ratings import Ratings
from recsys.errors import DataError
from recsys.features.encoder import FeatureBlocks, FeatureEncoder, Texts
from recsys.features.selection import with_features
from recsys.lsi.space import Weighting
from recsys.lsi.vectorizer import WordEncoder

N = 40
RNG = np.random.default_rng(0)
WORDS = np.array(
    ["robot", "space", "opera", "love", "war", "paris", "detective", "murder"]
)
FILMS = pl.DataFrame(
    {
        "item": np.arange(N),
        "title": [f"Film {n}" for n in range(N)],
        "year": [None if n % 10 == 0 else 1950 + n for n in range(N)],
        "budget": np.exp(3 * RNG.standard_normal(N)),
        "seen": [n % 3 == 0 if n % 7 else None for n in range(N)],
        "country": [["FR", "US", "JP", f"only {n}"][min(n % 9, 3)] for n in range(N)],
        "genres": [
            ["War"] if n % 2 else ["War", "Love"] if n % 4 else None for n in range(N)
        ],
        "released": [dt.date(1950 + n, 1 + n % 12, 1) for n in range(N)],
        "plot": [" ".join(RNG.choice(WORDS, 7)) + f" x{n}" for n in range(N)],
        "same": ["constant"] * N,
    }
)
FEATURES = Features.of(FILMS, "item")
IDS = Ids(np.arange(N), "item")
COLUMNS = ["year", "budget", "seen", "country", "genres", "released", "plot"]


def fit(columns: list[str] | None = None, texts: Texts = "terms") -> FeatureEncoder:
    encoder = FeatureEncoder.fit(FEATURES, IDS, columns)
    return encoder.with_vectors(FEATURES, IDS) if texts == "vectors" else encoder


def encoded(columns: list[str] | None = None, texts: Texts = "terms") -> FeatureBlocks:
    return fit(columns, texts).transform(FEATURES, IDS)


def one(row: dict[str, Any], encoder: FeatureEncoder) -> dict[str, float]:
    """Return the features of a new row that are not zero, by name."""
    frame = pl.DataFrame(
        {"item": ["n"], **{name: [value] for name, value in row.items()}}
    )
    matrix = encoder.transform(Features.of(frame, "item"), Ids(["n"], "item")).matrix
    return {encoder.names[at]: float(matrix[0, at]) for at in matrix.indices}


@pytest.mark.parametrize("texts", ["terms", "vectors"])
def test_blocks_are_named_scaled_and_contiguous(texts: Texts) -> None:
    blocks = encoded(texts=texts)
    assert list(blocks.groups) == COLUMNS
    ends = [0, *(each.stop for each in blocks.groups.values())]
    assert [each.start for each in blocks.groups.values()] == ends[:-1]
    assert blocks.matrix.shape == (N, ends[-1]) == (N, len(blocks.names))
    assert blocks.matrix.dtype == np.float32
    for column, part in blocks.groups.items():
        squares = np.square(blocks.matrix[:, part].toarray().astype(np.float64)).sum(
            axis=1
        )
        assert squares.mean() == pytest.approx(1, rel=1e-5), column
        assert all(name.startswith(column) for name in blocks.names[part])


def test_numbers_are_weights_of_knots_with_a_flag_for_missing_ones() -> None:
    blocks = encoded(["year"])
    near = [float(name.removeprefix("year near ")) for name in blocks.names[:-1]]
    assert (near, blocks.names[-1]) == (sorted(near), "year missing")
    assert len(near) == 5
    years = FILMS["year"].fill_null(np.nan).to_numpy().astype(float)
    missing = np.isnan(years)
    weights = blocks.matrix.toarray()[:, :-1] / blocks.encoder.blocks[0].scale
    np.testing.assert_allclose(weights.sum(axis=1), ~missing, rtol=1e-5)
    expected = np.clip(years, near[0], near[-1])[
        ~missing
    ]  # linear in between, flat beyond
    np.testing.assert_allclose((weights @ near)[~missing], expected, rtol=1e-6)
    assert ((weights > 0).sum(axis=1) <= 2).all()
    assert ((blocks.matrix.toarray()[:, -1] > 0) == missing).all()


def test_unusual_numbers_are_as_the_outer_ones() -> None:
    encoder = fit(["budget"])
    huge, small = (one({"budget": value}, encoder) for value in (1e300, -1.0))
    assert [*huge] == [encoder.names[-1]]
    assert [*small] == [encoder.names[0]]
    few = Features.of(
        pl.DataFrame({"item": IDS.values, "stars": np.arange(N) % 3}), "item"
    )
    names = FeatureEncoder.fit(few, IDS).names
    assert names == ("stars near 0", "stars near 1", "stars near 2")


def test_categories_that_occur_once_are_pooled() -> None:
    encoder = fit(["country", "genres", "seen"])
    assert encoder.names[:4] == (
        "country = FR",
        "country = JP",
        "country = US",
        "country = other",
    )
    assert encoder.names[4:] == (
        "genres = Love", "genres = War", "seen = false", "seen = true"
    )  # fmt: skip
    assert set(one({"country": "US"}, encoder)) == {"country = US"}
    assert set(one({"country": "XY"}, encoder)) == {"country = other"}
    assert set(one({"genres": ["War", "Horror", "War"], "seen": False}, encoder)) == {
        "genres = War", "seen = false",
    }  # fmt: skip
    frame = pl.DataFrame(
        {"item": [1], "country": ["XY"], "genres": [["Horror", "War"]]}
    )
    unknown = encoder.unknown(Features.of(frame, "item"))
    assert unknown == {"country": ["XY"], "genres": ["Horror"]}


def test_dates_have_a_year_and_a_season() -> None:
    encoder = fit(["released"])
    assert encoder.names[0] == "released near 1951-02-01"
    assert encoder.names[5:] == ("released (winter)", "released (spring)")
    january, july = (one({"released": dt.date(1969, m, 1)}, encoder) for m in (1, 7))
    assert january["released (winter)"] > 0 > july["released (winter)"]
    years = FILMS.with_columns(
        pl.date(pl.col("released").dt.year(), 1, 1).alias("released")
    )
    plain = FeatureEncoder.fit(Features.of(years, "item"), IDS, ["released"])
    assert all("near" in name for name in plain.names)


def test_texts_are_weighted_words_or_directions() -> None:
    encoder = fit(["plot"])
    assert set(encoder.names) == {
        f"plot ~ {word}" for word in WORDS
    }  # x1, x2, ... occur once
    found = one({"plot": "A robot in space; unheard words"}, encoder)
    assert set(found) == {"plot ~ robot", "plot ~ space"}
    vectors = fit(["plot"], "vectors")
    assert (
        len(vectors.names) == 2 < len(encoder.names)
    )  # a third of the words, of which two ...
    assert all(name.count(", ") == 2 for name in vectors.names)
    words = encoder.transform(FEATURES, IDS).matrix
    components = vectors.blocks[0].components  # type: ignore[attr-defined]
    scale = vectors.blocks[0].scale / encoder.blocks[0].scale
    expected = words @ components.T * scale
    np.testing.assert_allclose(
        vectors.transform(FEATURES, IDS).matrix.toarray(), expected, atol=1e-5
    )


def test_words_equal_the_index_of_texts() -> None:
    """Of any script, with their weights."""
    plots = [
        "Tea, the TEA of Assam_1",
        "\u559d\u8336 tea",
        "caf\u00e9 tea of \u559d\u8336",
        "cafe\u0301 x 1 of",
    ]
    features = Features.of(pl.DataFrame({"item": range(4), "plot": plots}), "item")
    features = Features(features.frame, {"plot": "text"})
    ids = Ids(np.arange(4), "item")
    encoder = FeatureEncoder.fit(features, ids)
    index = WordEncoder("tfidf", min_df=2)
    weighted = Weighting.learn("tfidf", counts := index.read([plots])).apply(counts)
    assert encoder.names == tuple(f"plot ~ {term}" for term in index.terms.values)
    found = encoder.transform(features, ids).matrix / encoder.blocks[0].scale
    np.testing.assert_allclose(found.toarray(), weighted.toarray(), rtol=1e-6)


def test_rows_that_are_not_in_the_table_are_zero() -> None:
    wider = Ids(np.arange(N + 3), "item")
    matrix = fit().transform(FEATURES, wider).matrix
    assert matrix.shape[0] == N + 3
    assert matrix[N:].nnz == 0  # missing numbers are not flagged either
    np.testing.assert_array_equal(matrix[:N].toarray(), encoded().matrix.toarray())


def test_new_tables_may_lack_columns_and_have_other_types() -> None:
    encoder = fit()
    assert set(one({"thing": 1.5}, encoder)) == {"year missing"}
    assert set(one({"year": "1900", "country": 7, "genres": "War|Love"}, encoder)) >= {
        "year near 1952", "country = other", "genres = War", "genres = Love"
    }  # fmt: skip
    assert set(one({"year": [["a"]], "released": "soon", "plot": 5}, encoder)) == {
        "year missing"
    }
    texts = one({"released": "1969-07-01", "plot": ["robot", "war"]}, encoder)
    assert {"released (winter)", "plot ~ robot", "plot ~ war"} <= set(texts)


def test_rows_described_in_words() -> None:
    encoder = fit()
    found = encoder.row(" year = 1990, genres=War|Love,plot=robot, of war").matrix
    names = {encoder.names[at] for at in found.indices}
    assert names == {
        "year near 1988",
        "genres = War",
        "genres = Love",
        "plot ~ robot",
        "plot ~ war",
    }
    same = encoder.row(
        {"year": 1990, "genres": ["War", "Love"], "plot": "robot, of war"}
    ).matrix
    assert (found != same).nnz == 0
    assert "seen = true" in {
        encoder.names[at] for at in encoder.row("seen=Yes").matrix.indices
    }
    assert encoder.row("country=Atlantis").matrix.nnz == 2  # other, and no year


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job=student", "no feature 'job' of items; there are year, budget, seen"),
        ("year=old", "year: 'old' is not a number"),
        ("released=soon", "released: 'soon' is not a date, such as 2024-01-31"),
        ("genres=Wra", "genres: 'Wra' is unknown; did you mean War"),
        ("seen=maybe", "seen: 'maybe' is unknown"),
        ("30", "given as NAME=VALUE, NAME=VALUE, ...; got '30'"),
    ],
)
def test_rows_that_cannot_be_described(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit().row(text)


def test_columns_that_tell_nothing_are_left_out() -> None:
    assert fit(["same"]).blocks == ()
    assert encoded(["same"]).matrix.shape == (N, 0)
    assert str(fit(["same"])) == "none"
    alone = Features.of(
        pl.DataFrame({"item": [1, 2], "note": ["one word", "other things"]}), "item"
    )
    assert FeatureEncoder.fit(alone, Ids([1, 2], "item")).blocks == ()
    with pytest.raises(
        DataError, match="no column 'yaer' of items; there are title, year"
    ):
        fit(["yaer"])


def test_only_the_rows_of_the_ids_are_learned_from() -> None:
    few = FeatureEncoder.fit(FEATURES, Ids(np.arange(1, 20), "item"), ["year"])
    assert few.names[-2:] == ("year near 1969", "year missing")


@pytest.mark.parametrize("told_by", ["terms", "vectors"])
def test_texts_are_what_tells_more_of_held_out_items(told_by: Texts) -> None:
    """Taste for topics of many synonyms is told by vectors, that for single words by terms."""
    rng, n = np.random.default_rng(0), 900
    words = rng.integers(0, 200, (n, 6))
    topics = rng.choice([-1, 1], n)
    if told_by == "terms":
        topics = rng.choice([-1, 1], 200)[words].sum(axis=1) / 2
    else:
        words = words % 100 + 50 * (topics[:, None] + 1)
    plots = [" ".join(f"w{word}" for word in row) for row in words]
    users, items = np.nonzero(rng.random((40, n)) < 0.4)
    taste, noise = rng.choice([-1, 1], 40), rng.standard_normal(len(users))
    values = 3 + taste[users] * topics[items] + 0.3 * noise
    rows = pl.DataFrame({"user": users, "item": items, "rating": values})
    films = pl.DataFrame({"item": np.arange(n), "plot": plots})
    found = with_features(Ratings.from_frame(rows, item_table=films))
    (block,) = found.item_features.encoder.blocks
    assert (block.components is None) == (told_by == "terms")
    assert block.remark.startswith("words explain ")
    assert block.remark in str(found.item_features.encoder)


def test_ratings_with_features() -> None:
    rows = pl.DataFrame(
        {"user": [1, 1, 2, 3], "item": [3, 5, 3, 39], "rating": [1, 2, 3, 4]}
    )
    people = pl.DataFrame(
        {"user": [1, 2, 3], "year": [1990, 1980, 1970], "job": ["a", "a", "b"]}
    )
    ratings = Ratings.from_frame(rows, item_table=FILMS, user_table=people)
    both = with_features(ratings)
    assert both.item_features is not None
    assert both.user_features is not None
    assert both.item_features.matrix.shape[0] == both.n_items == 3
    assert both.take(np.array([0])).item_features is both.item_features
    same = with_features(ratings, ["year"])
    assert [*same.item_features.groups] == [*same.user_features.groups] == ["year"]  # type: ignore[union-attr]
    one_side = with_features(ratings, ["job"])
    assert one_side.item_features is None
    assert one_side.user_features.names == ("job = a", "job = other")  # type: ignore[union-attr]
    with pytest.raises(
        DataError, match="no column 'jop' of items or users; there are title, year"
    ):
        with_features(ratings, ["jop"])
    with pytest.raises(
        DataError, match="no tables of items or users, so there are no features"
    ):
        with_features(Ratings.from_frame(rows))


@pytest.mark.parametrize("as_text", [False, True])
def test_items_and_users_without_ratings_are_known_by_their_features(
    as_text: bool,
) -> None:
    rows = pl.DataFrame(
        {"user": [5, 5, 8, 9], "item": [3, 5, 3, 39], "rating": [1, 2, 3, 4]}
    )
    films = FILMS.with_columns(pl.col("item").cast(pl.String)) if as_text else FILMS
    people = pl.DataFrame({"user": [*"7598x1"], "job": [*"aaabba"]})
    ratings = Ratings.from_frame(rows, item_table=films, user_table=people)
    wider = with_features(ratings, unrated=True)
    assert wider.items.values.to_list() == list(range(N))
    assert wider.users.values.to_list() == [
        1,
        5,
        7,
        8,
        9,
    ]  # "x" cannot be among integers
    assert wider.to_frame().equals(ratings.to_frame())
    known = with_features(ratings)
    for side in ("item", "user"):
        more, less = (getattr(each, f"{side}_features") for each in (wider, known))
        places = getattr(wider, f"{side}s").find(getattr(known, f"{side}s").values)
        np.testing.assert_array_equal(
            more.matrix[places].toarray(), less.matrix.toarray()
        )
        assert more.matrix.shape[0] == len(getattr(wider, f"{side}s"))
    assert wider.user_features.matrix[[0]].nnz == 1  # type: ignore[union-attr]
    assert with_features(wider, unrated=True).shape == wider.shape


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(-1e6, 1e6)),
            st.one_of(st.none(), st.sampled_from(["a", "b", "c|d"])),
            st.one_of(st.none(), st.booleans()),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_table_is_encoded_alike_whole_and_row_by_row(rows: list[Any]) -> None:
    frame = pl.DataFrame(
        rows, ["x", "level", "truth"], orient="row", infer_schema_length=None
    )
    features = Features.of(
        frame.insert_column(0, pl.Series("item", np.arange(len(rows)))), "item"
    )
    ids = Ids(np.arange(len(rows)), "item")
    encoder = FeatureEncoder.fit(features, ids)
    whole = encoder.transform(features, ids).matrix
    assert np.isfinite(whole.data).all()
    for row in range(len(rows)):
        alone = encoder.transform(features, Ids([row], "item")).matrix
        np.testing.assert_array_equal(alone.toarray()[0], whole[[row]].toarray()[0])


@pytest.mark.parametrize("values", [None, [4.0] * 24, [1.0, 5.0] * 12], ids=str)
def test_words_and_vectors_are_compared_on_any_ratings(
    values: list[float] | None,
) -> None:
    """Interactions, ratings that are all equal, and ratings of rank one."""
    texts = [
        "robots fight a war in space",
        "a war of robots",
        "love in a small town",
    ] * 4
    table = pl.DataFrame(
        {"item": range(12), "plot": [f"{each} {n}" for n, each in enumerate(texts)]}
    )
    pairs = {"user": [n // 2 for n in range(24)], "item": [n % 12 for n in range(24)]}
    rated = pl.DataFrame(pairs if values is None else {**pairs, "rating": values})
    found = with_features(Ratings.from_frame(rated, item_table=table)).item_features
    assert found is not None
    assert np.isfinite(found.matrix.data).all()
