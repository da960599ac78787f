"""Updates: ratings afterwards, what is folded in, when everything is fitted again."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys import Ratings, Recommender, UnknownIdError, read_ratings
from recsys.changes import change_of
from recsys.data.features import Features
from recsys.errors import DataError
from recsys.models.histories import Histories
from recsys.readers import as_ratings
from recsys.update import planned

pytestmark = pytest.mark.usefixtures("one_fold")

FOLDING = ["als", "bayes", "bias", "ials", "softimpute", "clusters", "implicit-als"]
DAY = 86400


def frame(n_users=40, n_items=30, n=500, seed=0):
    rng = np.random.default_rng(seed)
    rows = {
        "user": rng.integers(0, n_users, n),
        "item": rng.integers(100, 100 + n_items, n),
    }
    values = rng.choice([1.0, 2.0, 3.0, 4.0, 5.0], n)
    return pl.DataFrame({**rows, "rating": values, "timestamp": np.arange(n) * DAY})


OLD = Ratings.from_frame(frame())
NEW = Ratings.from_frame(
    pl.DataFrame(
        {
            "user": [3, 3, 777, 777, 4],
            "item": [101, 999, 101, 102, 103],
            "rating": [1.0, 5.0, 4.0, 2.0, 3.0],
            "timestamp": [600 * DAY] * 5,
        }
    )
)


def pairs(ratings):
    return {(user, item): rest for user, item, *rest in ratings.to_frame().iter_rows()}


def texts(user, item):
    """Return the old ratings with texts as ids, such as "u7" and "i107"."""
    renamed = (
        pl.format(user, "user").alias("user"),
        pl.format(item, "item").alias("item"),
    )
    return Ratings.from_frame(frame().with_columns(*renamed))


@pytest.mark.parametrize(
    ("user", "item", "remark"),
    [
        (
            "U{}",
            "i{}",
            "of the 40 new users, 40 differ from known ones only in writing",
        ),
        ("00{}x", "i{}", None),
        (
            "u{}",
            "I{}",
            "of the 30 new items, 30 differ from known ones only in writing",
        ),
        ("w{}", "k{}", None),
        (
            "{}",
            "0i{}",
            "of the 40 new users, 40 differ from known ones only in writing, of the 30 new items, "
            "30 differ",
        ),
        (
            "u{}.0",
            "i{}",
            "of the 40 new users, 40 differ from known ones only in writing",
        ),
    ],
)
def test_new_ids_that_may_be_known_ones(user, item, remark):
    old = texts("u{}", "i{}")
    fitted = Recommender(model="popular").fit(old).fitted
    said = planned(fitted, texts(user, item)).description
    assert (remark is None and "differ" not in said) or remark in said


def test_new_ids_without_zeros_and_with_invisible_marks():
    padded = frame().with_columns(
        pl.col("user").cast(pl.String).str.zfill(5),
        pl.format("caf\u00e9 {}", "item").alias("item"),
    )
    fitted = Recommender(model="popular").fit(Ratings.from_frame(padded)).fitted
    changes = {
        "of the 30 new items, 30 differ": padded.with_columns(
            pl.col("item") + "\u200b"
        ),
        "of the 30 new items, 27 differ": padded.with_columns(
            pl.when(pl.col("item").str.ends_with("7"))
            .then(pl.lit("tea ") + pl.col("item"))
            .otherwise(pl.col("item").str.replace("\u00e9", "\u00c3\u00a9"))
            .alias("item")
        ),
        "of the 40 new users, 40 differ": padded.with_columns(
            pl.col("user").cast(pl.Int64)
        ),
    }
    for remark, changed in changes.items():
        assert remark in planned(fitted, Ratings.from_frame(changed)).description


@pytest.mark.parametrize("code", [-999, -9, -1])
def test_a_code_for_no_rating_in_new_ratings_is_an_error(code):
    known = Recommender(model="popular").fit(OLD)
    rows = {"user": [3, 4], "item": [101, 102], "rating": [float(code), 4.0]}
    new = pl.DataFrame(rows).with_columns(timestamp=pl.lit(600 * DAY))
    if code == -1:  # a wider scale is possible
        plan = planned(known.fitted, Ratings.from_frame(new))
        assert "grades are from -1 to" in plan.description
        return
    cure = rf"Rating {code} of item 101 by user 3 .* --missing {code} \(missing=\)"
    with pytest.raises(DataError, match=cure):
        known.update(Ratings.from_frame(new))
    known.update(Ratings.from_frame(new, missing=code))
    assert known.ratings.value_range() == OLD.value_range()


def test_new_ratings_with_exchanged_columns():
    old = texts("u{}", "i{}")
    exchanged = old.to_frame().rename({"user": "item", "item": "user"})
    fitted = Recommender(model="popular").fit(old).fitted
    plan = planned(fitted, Ratings.from_frame(exchanged))
    said = "of the 30 new users, 30 are known items, as if the columns were"
    assert said in plan.description


# What the ratings are afterwards

triples = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.sampled_from([1.0, 2.5, 4.0]), st.integers(0, 9)),
    min_size=1,
)


def ratings_of(table):
    rows = [(user, item, *rest) for (user, item), rest in table.items()]
    names = ["user", "item", "rating", "timestamp"]
    return Ratings.from_frame(pl.DataFrame(rows, schema=names, orient="row"))


@given(
    triples,
    triples | st.none(),
    st.integers(1, 12),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_a_change_has_old_and_new_events_without_removed_ones(old, new, days, users):
    known = ratings_of(old)
    fresh = None if new is None else ratings_of(new)
    forget = [user for user in users if known.users.find([user])[0] >= 0]
    change = change_of(known, fresh, window=float(days), forget=forget)
    # The window reaches back from the newest event of the users that stay.
    staying = [
        time
        for table in (old, new or {})
        for (user, _), (_, time) in table.items()
        if user not in forget
    ]
    last = max(staying, default=0)
    newest = old | {
        pair: rest
        for pair, rest in (new or {}).items()
        if pair not in old or rest[1] >= old[pair][1]
    }
    expected = {
        pair: [*rest]
        for pair, rest in newest.items()
        if pair[0] not in forget and rest[1] >= last - days
    }
    assert pairs(change.after) == expected
    before = rows_of(known)
    for user, row in rows_of(change.after).items():
        place = change.after.users.find([user])[0]
        assert (place in change.changed_users) >= (row != before.get(user))
    for place, user in enumerate(known.users.values):
        now = change.users[place]
        assert now == change.after.users.find([user])[0]


def rows_of(ratings):
    rows = {}
    for (user, item), rest in pairs(ratings).items():
        rows.setdefault(user, {})[item] = rest
    return rows


def test_users_and_items_left_without_ratings_leave():
    change = change_of(OLD, window="100d")
    assert (
        change.after.n_ratings
        == (OLD.timestamps >= OLD.timestamps.max() - 100 * DAY).sum()
    )
    assert (np.diff(change.after.indptr) > 0).all()
    assert (change.users < 0).sum() == OLD.n_users - change.after.n_users


def test_a_window_needs_timestamps():
    timeless = Ratings.from_frame(frame().drop("timestamp"))
    with pytest.raises(
        DataError, match="A window needs timestamps, and the model's ratings have"
    ):
        change_of(timeless, window="30d")
    with pytest.raises(
        DataError, match="window must be a duration in s, min, h, d, w or y"
    ):
        change_of(OLD, window="soon")


def test_who_is_forgotten_must_be_known():
    with pytest.raises(UnknownIdError, match="Unknown user 4711"):
        change_of(OLD, forget=[4711])
    table = pl.DataFrame({"user": [3, 4711], "age": [30, 40]})
    known = Ratings.from_frame(frame(), user_table=table)
    after = change_of(known, NEW, forget=[4711, 3]).after
    assert after.user_table is not None
    assert not len(after.user_table)
    assert 3 not in after.users.values


def test_a_rating_that_is_there_already_changes_nothing():
    again = OLD.take(np.arange(50))
    change = change_of(OLD, again)
    assert (change.n_added, len(change.changed_users), len(change.outdated)) == (
        0,
        0,
        0,
    )
    later = again.to_frame().with_columns(timestamp=pl.lit(999 * DAY))
    assert change_of(OLD, Ratings.from_frame(later)).n_added == 50
    updated = Recommender("bias").fit(OLD).update(again)
    assert updated.training["update"] == "folded in nothing, without a new fit"
    assert updated.training["folded"] == 0


def test_weights_of_interactions_add_up():
    one = pl.DataFrame({"user": [1, 1, 2], "item": [5, 5, 5], "timestamp": [1, 2, 9]})
    counts = Ratings.from_frame(one, duplicates="sum")
    more = Ratings.from_frame(
        pl.DataFrame({"user": [1], "item": [5], "timestamp": [7]})
    )
    assert pairs(change_of(counts, more).after) == {(1, 5): [3.0, 7], (2, 5): [1.0, 9]}


# Folding in


@pytest.mark.parametrize("name", FOLDING)
def test_new_and_changed_users_get_the_vectors_of_a_fold_in(name):
    before = Recommender(name).fit(OLD)
    scores = before.model.scores(np.arange(OLD.n_users))
    after = before.update(NEW)
    assert after.training["update"].startswith("folded in 3 users (1 new) and ")
    users = after.ratings.users.find([3, 4, 777])
    expected = after.model.with_users(Histories.of(after.ratings).take(users))
    np.testing.assert_array_equal(
        expected.scores(np.arange(3)), after.model.scores(users)
    )
    np.testing.assert_array_equal(before.model.scores(np.arange(OLD.n_users)), scores)
    assert after.recommend(777, n=3).height == 3


@pytest.mark.parametrize("name", ["als", "bayes", "bias", "softimpute", "clusters"])
def test_models_of_ratings_keep_users_and_items_that_have_nothing_to_do_with_the_new(
    name,
):
    before = Recommender(name).fit(OLD)
    after = before.update(NEW)
    touched = [101, 102, 103]
    rows = OLD.to_frame()
    raters = rows.filter(pl.col("item").is_in(touched))["user"].unique()
    others = OLD.users.values.filter(~OLD.users.values.is_in([3, 4, *raters]))
    items = OLD.items.values.filter(~OLD.items.values.is_in(touched))
    assert len(others) > 5
    kept, now = (
        each.model.scores(each.ratings.users.find(others))[
            :, each.ratings.items.find(items)
        ]
        for each in (before, after)
    )
    np.testing.assert_allclose(now, kept, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*FOLDING, "blend", "ease"])
def test_explanations_add_up_to_the_scores_of_all_users_after_an_update(name):
    old, new = (each.to_frame() for each in (OLD, NEW))
    if name in ("blend", "ease"):  # they take new items in a fit only
        new = new.filter(pl.col("item") < 900)
    members = {"members": "ials,ease"} if name == "blend" else {}
    before = Recommender(name, **members).fit(Ratings.from_frame(old))
    after = before.update(Ratings.from_frame(new), refit=False)
    after = after.update(forget=[5], refit=False)
    for user, item, _, score, *_ in after.recommend(n=2).iter_rows():
        assert after.explain(user, item)["contribution"].sum() == pytest.approx(
            score, abs=1e-5
        )


@pytest.mark.parametrize("name", ["als", "bayes"])
def test_linked_models_are_folded_in(name):
    before = Recommender(name, linked=True, factors=4).fit(OLD)
    after = before.update(NEW, refit=False)
    users = after.ratings.users.find([3, 777])
    expected = after.model.with_users(Histories.of(after.ratings).take(users))
    np.testing.assert_allclose(
        expected.scores([0, 1]), after.model.scores(users), rtol=1e-5, atol=1e-5
    )
    assert len(after.model._prior("item").link)


def test_a_new_item_is_recommended_to_those_who_like_what_its_raters_like():
    after = Recommender("als", factors=4).fit(OLD).update(NEW)
    alone = Recommender("als", factors=4).fit(OLD)
    place = after.ratings.items.find([999])[0]
    assert np.abs(after.model.item_factors[place]).sum() > 0
    assert alone.ratings.items.find([999])[0] == -1


@pytest.mark.parametrize("name", FOLDING)
def test_users_are_solved_for_the_items_after_the_update(name, tmp_path):
    rows = frame().drop("rating") if name == "ials" else frame()
    old = Ratings.from_frame(rows, implicit=name == "ials")
    options = {"ials": {"regularization": 0.05, "unobserved_weight": 0.2}}
    recommender = Recommender(name, **options.get(name, {})).fit(old)
    new = NEW.to_frame()
    new = new if "rating" in rows.columns else new.drop("rating")
    updated = recommender.update(new, refit=False)
    updated.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    # The loaded model has nothing that was computed during the update.
    folded = loaded.fold_in(updated.ratings.to_frame())
    users = np.arange(updated.ratings.n_users)
    expected = updated.model.scores(users)
    np.testing.assert_allclose(folded.model.scores(users), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["ials", "implicit-als"])
def test_a_new_user_of_a_new_item_gets_popular_items(name):
    rng = np.random.default_rng(0)
    rows = {
        "user": rng.integers(0, 100, 3000),
        "item": 100 + np.floor(60 * rng.random(3000) ** 2),
    }
    before = Recommender(name).fit(
        Ratings.from_frame(pl.DataFrame(rows).cast(pl.Int64))
    )
    new = Ratings.from_frame(
        pl.DataFrame({"user": [777], "item": [1]})
    )  # the first item
    after = before.update(new, refit=False)
    top = after.recommend(777, n=10)
    assert (top["score"] > 0).all()
    counts = np.bincount(before.ratings.indices)
    found = counts[before.ratings.items.find(top["item"])]
    assert found.mean() > 1.5 * counts.mean()


def test_models_of_histories_take_new_ones_and_are_fitted_again_for_new_items():
    known = Ratings.from_frame(NEW.to_frame().filter(pl.col("item") < 900))
    before = Recommender("ease").fit(OLD)
    after = before.update(known)
    np.testing.assert_array_equal(after.model.weights, before.model.weights)
    whole = after.model.with_users(Histories.of(after.ratings))
    np.testing.assert_array_equal(whole.scores([3]), after.model.scores([3]))
    again = before.update(NEW)
    assert (
        again.training["update"]
        == "fitted again: ease learns about new items in a fit only"
    )
    with pytest.raises(
        DataError, match="must be fitted again: ease learns about new items"
    ):
        before.update(NEW, refit=False)


def test_blends_are_folded_in_part_by_part():
    blend = Recommender("blend", members="ials,ease")
    known = Ratings.from_frame(NEW.to_frame().filter(pl.col("item") < 900))
    after = blend.fit(OLD).update(known)
    assert after.training["update"].startswith("folded in")
    assert after.recommend(777, n=2).height == 2


@pytest.mark.parametrize("name", ["ease", "spectral", "ials"])
def test_features_of_users_stay_in_models_of_interactions(name):
    ages = pl.DataFrame({"user": range(41), "kind": ["even", "odd"] * 20 + ["even"]})
    from recsys import with_features

    once = frame().drop("rating")
    before = Recommender(name, factors=4) if name != "ease" else Recommender(name)
    before.fit(with_features(Ratings.from_frame(once, user_table=ages)))
    new = pl.DataFrame({"user": [3], "item": [101], "timestamp": [600 * DAY]})
    after = before.update(Ratings.from_frame(new), refit=False)
    others = np.delete(np.arange(40), 3)
    places = after.ratings.users.find(before.ratings.users.values.to_numpy()[others])
    kept = before.ratings.items.find(
        after.ratings.items.values
    ) != before.ratings.items.find([101])
    # its users are solved against the item anew
    tolerance = 0.02 if name == "ials" else 1e-4
    np.testing.assert_allclose(
        after.model.scores(places)[:, kept],
        before.model.scores(others)[:, kept],
        rtol=tolerance,
    )


def test_features_tell_of_new_items_at_once():
    items = pl.DataFrame({"item": range(100, 130), "genre": ["war", "love"] * 15})
    old = Ratings.from_frame(frame(), item_table=items)
    from recsys import with_features

    before = Recommender("als", factors=4).fit(with_features(old))
    more = pl.DataFrame({"item": [999], "genre": ["war"]})
    new = Ratings.from_frame(NEW.to_frame(), item_table=more)
    after = before.update(new, refit=False)
    encoder = after.ratings.item_features.encoder
    assert encoder is before.ratings.item_features.encoder
    row = after.ratings.item_features.matrix[
        [after.ratings.items.find([999])[0]]
    ].toarray()
    at = after.ratings.items.find([100])
    np.testing.assert_array_equal(row, after.ratings.item_features.matrix[at].toarray())


def test_an_item_is_solved_once_for_each_growth_of_its_ratings():
    rows = [(user, 1) for user in range(1000)] + [(user, 2) for user in range(5)]
    many = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    ratings, solved = Ratings.from_frame(many), 0
    for user in range(1000, 1100):
        new = Ratings.from_frame(pl.DataFrame({"user": [user], "item": [1]}))
        change = change_of(ratings, new)
        solved += len(change.outdated)
        ratings = change.after
    assert 3 <= solved <= 6  # 10% in steps of 2%
    few = change_of(
        ratings, Ratings.from_frame(pl.DataFrame({"user": [7], "item": [2]}))
    )
    assert len(few.outdated) == 1


# A new fit


def test_a_new_fit_has_a_reason():
    before = Recommender("bias").fit(OLD)
    assert before.update(refit=True).training["update"] == "fitted again: as requested"
    rng = np.random.default_rng(1)
    many = pl.DataFrame(
        {"user": np.arange(150) + 1000, "item": rng.integers(100, 130, 150)}
    ).with_columns(
        rating=pl.Series(rng.choice([1.0, 2.0, 3.0, 4.0, 5.0], 150)),
        timestamp=pl.lit(int(OLD.timestamps.max())),
    )
    said = before.update(Ratings.from_frame(many)).training["update"]
    assert "added and removed ratings are " in said
    same = many.head(60).with_columns(rating=pl.lit(1.0))
    said = before.update(Ratings.from_frame(same)).training["update"]
    assert "the distribution of ratings has shifted (stability index" in said
    kept = before.update(Ratings.from_frame(same), refit=False)
    assert kept.training["update"].startswith("folded in")
    assert kept.training["folded"] == 60
    assert kept.update(refit=True).training.get("folded") is None
    with pytest.raises(DataError, match="No rating would be left"):
        before.update(forget=OLD.users.values)


@pytest.mark.parametrize("name", ["als", "bias"])
@pytest.mark.parametrize("has_table", [False, True])
def test_a_new_fit_says_that_it_has_no_held_out_ratings(name, has_table, tmp_path):
    held_out = np.arange(OLD.n_ratings) % 10 == 0
    items = [*OLD.items, 9999]
    table = pl.DataFrame(
        {"item": items, "color": [("red", "blue")[n % 2] for n in items]}
    )
    whole = OLD
    if has_table:
        whole = replace(OLD, item_table=Features.of(table, "item"))
    train, validation = whole.take(~held_out), whole.take(held_out)
    fitted = Recommender(name).fit(train, validation=validation)
    fitted.save(tmp_path / "m")
    again = Recommender.load(tmp_path / "m").update(refit=True)
    said = "the held-out ratings that chose the iterations of the earlier fit are not"
    assert (said in again.training["update"]) == (name == "als")
    assert again.update(refit=True).training["update"] == "fitted again: as requested"
    plain = Recommender(name).fit(train)
    for key, array in plain.model._arrays().items():
        np.testing.assert_array_equal(again.model._arrays()[key], array)


@pytest.mark.parametrize("name", ["ials", "blend"])
def test_a_new_fit_may_have_more_or_fewer_items(name):
    before = Recommender(name).fit(OLD)
    more = before.update(NEW, refit=True)
    assert more.model.n_items == before.model.n_items + 1
    fewer = more.update(window="150d", refit=True)
    assert fewer.recommend(777, n=3).height == 3


def test_small_updates_add_up_to_a_new_fit():
    updated, n_fits = Recommender("bias").fit(OLD), 0
    rng = np.random.default_rng(2)
    for day in range(12):
        rows = {"user": np.full(15, 5000 + day), "item": rng.permutation(30)[:15] + 100}
        new = pl.DataFrame(rows).with_columns(
            rating=pl.Series(rng.choice([1.0, 2, 3, 4, 5], 15)),
            timestamp=pl.lit(int(OLD.timestamps.max())),
        )
        updated = updated.update(Ratings.from_frame(new))
        n_fits += updated.training["update"].startswith("fitted again")
    assert n_fits == 1


# What is remembered


@pytest.mark.parametrize("name", ["als", "ease", "popular", "spectral", "blend"])
def test_an_update_without_news_keeps_the_model(name):
    before = Recommender(name).fit(OLD)
    again = before.update(OLD.take(np.arange(60)))
    assert again.training["changes"] == "0 new events, 60 known already"
    assert again.training["update"] == "folded in nothing, without a new fit"
    for key, array in before.model._arrays().items():
        np.testing.assert_array_equal(again.model._arrays()[key], array)


def test_a_repeated_pair_is_an_error_if_it_was_one_in_the_fit():
    model = Recommender("popular").fit(
        Ratings.from_frame(frame(n=1), duplicates="error")
    )
    again = frame(n=1).with_columns(timestamp=pl.lit(9 * DAY))
    with pytest.raises(
        DataError, match=r"has rated item .* already, and the model was"
    ):
        model.update(Ratings.from_frame(again, duplicates="error"))
    same = model.update(Ratings.from_frame(frame(n=1), duplicates="error"))
    assert same.training["changes"] == "0 new events, 1 known already"


def test_an_update_reads_as_the_model_was_read(tmp_path):
    events = pl.DataFrame(
        {
            "who": ["a", "a", "b", "c"],
            "what": ["x", "y", "x", "z"],
            "did": ["buy", "view", "view", "buy"],
            "at": ["2025-01-01", "2025-01-11", "2025-01-11", "2025-01-01"],
        }
    )
    events.write_csv(tmp_path / "old.csv")
    weights = {"buy": 8.0, "view": 2.0}
    options = {"user": "who", "item": "what", "timestamp": "at", "event": "did"}
    ratings = read_ratings(
        tmp_path / "old.csv", **options, event_weights=weights, half_life="10d"
    )
    Recommender("popular").fit(ratings).save(tmp_path / "m", tag="nightly")
    loaded = Recommender.load(tmp_path / "m")
    assert loaded.provenance.tag == "nightly"
    assert loaded.provenance.period == (
        "2025-01-01T00:00:00+00:00",
        "2025-01-11T00:00:00+00:00",
    )
    assert loaded.provenance.reading["event_weights"] == weights
    new = events.head(1).with_columns(at=pl.lit("2025-01-21"))
    new.write_csv(tmp_path / "new.csv")
    updated = loaded.update(tmp_path / "new.csv")
    # As of the last rating: a buy of ten days ago counts half of one today.
    assert pairs(updated.ratings)["a", "x"][0] == 8.0 + 8.0 / 4
    assert pairs(updated.ratings)["b", "x"][0] == 1.0
    updated.save(tmp_path / "m2")
    assert (
        Recommender.load(tmp_path / "m2").provenance.parent == loaded.provenance.version
    )
    log = new.rename({"who": "user", "what": "item", "did": "event", "at": "timestamp"})
    log.write_ndjson(tmp_path / "log.jsonl")
    assert loaded.update(tmp_path / "log.jsonl").ratings.n_ratings == 4


@pytest.mark.parametrize("form", ["path", "frame", "pandas", "ratings"])
@pytest.mark.parametrize("state", ["fitted", "loaded", "with tables"])
def test_an_update_reads_as_the_model_was_read_in_every_form(tmp_path, form, state):
    rng = np.random.default_rng(0)
    ids = {"who": rng.integers(0, 20, 600), "what": rng.integers(0, 15, 600)}
    events = pl.DataFrame({**ids, "did": rng.choice(["buy", "view"], 600)})
    events = events.with_columns(at=1_600_000_000 + np.arange(600) * DAY // 8)
    names = {"user": "who", "item": "what", "event": "did", "timestamp": "at"}
    options = {**names, "event_weights": {"buy": 5.0, "view": 1.0}, "half_life": "7d"}
    before = Recommender("popular").fit(Ratings.from_frame(events.head(500), **options))
    if state == "loaded":
        before.save(tmp_path / "m")
        before = Recommender.load(tmp_path / "m")
    elif state == "with tables":
        before = before.with_tables(
            item_table=pl.DataFrame({"item": [1], "title": ["One"]})
        )
    new = events.tail(100)
    new.write_csv(tmp_path / "new.csv")
    forms = {"path": tmp_path / "new.csv", "frame": new, "pandas": new.to_pandas()}
    forms["ratings"] = Ratings.from_frame(new, **options)
    found = before.update(forms[form]).ratings
    expected = Ratings.from_frame(events, **options)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.values, expected.values)


def aging(tmp_path, days, half_life):
    """Return a model of events until day 99, and the files of the days after it."""
    rng = np.random.default_rng(0)
    rows = {"user": rng.integers(0, 40, 2000), "item": rng.integers(0, 100, 2000)}
    time = np.sort(rng.integers(0, (99 + days) * DAY, 2000))
    time[-1] = (99 + days) * DAY
    events = pl.DataFrame({**rows, "timestamp": time})
    known = events["timestamp"] <= 99 * DAY
    events.filter(known).write_csv(tmp_path / "old.csv")
    events.write_csv(tmp_path / "all.csv")
    files = []
    for day in range(99, 99 + days):
        some = (events["timestamp"] > day * DAY) & (
            events["timestamp"] <= (day + 1) * DAY
        )
        files.append(tmp_path / f"day{day}.csv")
        events.filter(some).write_csv(files[-1])
    old, whole = (
        Recommender("ials", regularization=0.1, unobserved_weight=0.03).fit(
            read_ratings(tmp_path / name, half_life=half_life)
        )
        for name in ("old.csv", "all.csv")
    )
    old.save(tmp_path / "m")
    return Recommender.load(tmp_path / "m"), whole, files


def test_old_weights_age_with_a_half_life_and_all_are_solved_again(tmp_path):
    updated, whole, files = aging(tmp_path, 5, "10d")
    before = updated
    for file in files:
        updated = updated.update(file)
        assert updated.training["update"].startswith("folded in 40 users and 100 items")
    np.testing.assert_array_equal(updated.ratings.values, whole.ratings.values)
    assert updated.training["aged"] == pytest.approx(0.5, abs=0.1)
    found, stale, expected = (
        each.recommend(n=10)["item"].to_numpy().reshape(40, 10)
        for each in (updated, before, whole)
    )
    shared = [
        np.mean(
            [len(np.intersect1d(*pair)) for pair in zip(each, expected, strict=True)]
        )
        for each in (found, stale)
    ]
    assert shared[0] > 8 > shared[1]
    again = updated.update(tmp_path / "day99.csv")  # these events are known
    np.testing.assert_array_equal(again.ratings.values, updated.ratings.values)


def test_everything_is_fitted_again_after_a_half_life(tmp_path):
    updated, whole, files = aging(tmp_path, 3, "2d")
    said = [(updated := updated.update(file)).training["update"] for file in files]
    assert [
        text.startswith("fitted again: weights have halved 1") for text in said
    ] == [0, 1, 0]
    np.testing.assert_array_equal(updated.ratings.values, whole.ratings.values)
    again = updated.update(files[0], refit=False)
    assert again.training["update"].startswith("folded in")


def test_a_password_is_not_remembered():
    from recsys.provenance import remembered

    options = {"user": "who", "item_table": "postgresql://me:secret@db/shop::items"}
    assert remembered(options) == {"user": "who"}


def test_new_events_without_the_ids_or_the_weights_of_earlier_ones():
    rows = {"user": [1, 2], "item": [5, 6], "qty": [2.0, 3.0], "timestamp": [10**9] * 2}
    orders = pl.DataFrame({**rows, "event_id": ["a", "b"]})
    fitted = Recommender("popular").fit(Ratings.from_frame(orders, weight="qty")).fitted
    reading = fitted.provenance.reading
    unnamed = as_ratings(orders.drop("event_id"), reading)
    said = planned(fitted, unnamed).description
    assert "2 new events, without the ids that earlier events have, a repeated" in said
    assert planned(fitted, as_ratings(orders, reading)).description.startswith("0 new")
    unweighted = as_ratings(orders.drop("qty"), reading)
    assert "no column 'qty', so each row has a weight of 1" in str(unweighted.source)


@pytest.mark.parametrize(
    ("factor", "differs"), [(1, False), (60, True), (1 / 60, True)]
)
def test_new_weights_in_another_unit_are_named(factor, differs):
    plays = frame().rename({"rating": "minutes"})
    fitted = Recommender("popular").fit(Ratings.from_frame(plays, weight="minutes"))
    later = plays.with_columns(
        pl.col("timestamp") + 900 * DAY, pl.col("minutes") * factor
    )
    new = Ratings.from_frame(later, weight="minutes")
    said = planned(fitted.fitted, new).description
    assert ("the new weights seem to be in another unit" in said) == differs
