"""Events: what a rule makes of them, what is a repetition, what is kept; updates as readings."""

import itertools
import tracemalloc

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys import Ratings, Recommender, read_ratings
from recsys.changes import change_of
from recsys.data import csr
from recsys.data import events as events_module
from recsys.data.csr import event_keys
from recsys.data.kinds import EventRule
from recsys.errors import DataError

KINDS = {"view": 1.0, "buy": 5.0}

times = st.integers(0, 6)
events = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.sampled_from(sorted(KINDS)), times
)
logs = st.lists(events, min_size=1, max_size=25)
# Saving takes long, and is tried with each of the options.
few = settings(max_examples=settings().max_examples // 2)
OPTIONS = [
    {},
    {"event_weights": KINDS},
    {"event_weights": KINDS, "half_life": 2.0},
    {"half_life": 3.0},
    {"event_weights": KINDS, "duplicates": "first"},
    {"event_weights": KINDS, "duplicates": "mean"},
    {"event_weights": {"buy": 2.0, "*": 0.0}},
]


def table(rows):
    names = {
        "user": pl.Int64,
        "item": pl.Int64,
        "event": pl.String,
        "timestamp": pl.Int64,
    }
    return pl.DataFrame(rows, schema=names, orient="row")


def read(rows, **options):
    return Ratings.from_frame(table(rows), **options)


def arrays(ratings):
    """All arrays of ratings and their events, as bytes."""
    found = {name: getattr(ratings, name) for name in ("indptr", "indices", "data")}
    found |= {"levels": ratings.levels, "seconds": ratings.seconds}
    if ratings.events is not None:
        found |= {
            f"events/{name}": each
            for name, each in ratings.events.saved_arrays().items()
        }
    return {
        name: None if each is None else (each.dtype.str, each.tobytes())
        for name, each in found.items()
    }


def same(one, other):
    assert one.users.values.to_list() == other.users.values.to_list()
    assert one.items.values.to_list() == other.items.values.to_list()
    assert one.rule == other.rule
    assert arrays(one) == arrays(other)


def brute_force(rows, weights, half_life, policy):
    """The weight of each pair, by dictionaries."""
    distinct = (
        list(dict.fromkeys(rows))
        if weights
        else list(dict.fromkeys((user, item, "", time) for user, item, _, time in rows))
    )
    known = [
        row
        for row in distinct
        if not weights or weights.get(row[2], weights.get("*", 0))
    ]
    newest = max((time for *_, time in known), default=0)
    pairs = {}
    for user, item, kind, time in sorted(known, key=lambda row: row[3]):
        weight = weights.get(kind, 1.0) if weights else 1.0
        if half_life:
            weight *= 2.0 ** ((time - newest) / half_life)
        pairs.setdefault((user, item), []).append(weight)
    rules = {
        "sum": sum,
        "first": lambda w: w[0],
        "last": lambda w: w[-1],
        "mean": np.mean,
    }
    return {pair: float(rules[policy](weights)) for pair, weights in pairs.items()}


def used(rows, options):
    weights = options.get("event_weights", {"*": 1.0})
    return [row for row in rows if weights.get(row[2], weights.get("*", 0))]


@pytest.mark.parametrize("options", OPTIONS)
@given(rows=logs)
def test_ratings_are_what_the_rule_makes_of_distinct_events(options, rows):
    if not used(rows, options):
        return
    weights = options.get("event_weights")
    half_life = options.get("half_life")
    policy = options.get("duplicates", "sum" if weights or half_life else "last")
    ratings = read(rows, **options)
    expected = brute_force(rows, weights, half_life, policy)
    values = dict(
        zip(
            zip(
                *(ratings.to_frame()[name].to_list() for name in ("user", "item")),
                strict=True,
            ),
            ratings.values.tolist(),
            strict=True,
        )
    )
    if policy not in (
        "first",
        "last",
    ):  # of different kinds at the same time either may count
        assert values == pytest.approx(expected, rel=1e-6)
    assert values.keys() == expected.keys()


@pytest.mark.parametrize("options", OPTIONS)
@given(
    rows=logs, cuts=st.lists(st.integers(0, 25), max_size=3), overlap=st.integers(0, 5)
)
def test_updates_are_one_reading_of_everything(options, rows, cuts, overlap):
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {len(rows)})
    first = used(rows[: ends[0]], options)
    if not first:
        return
    ratings = read(first, **options)
    for start, end in itertools.pairwise(ends):
        new = used(rows[max(0, start - overlap) : end], options)
        if new:
            ratings = change_of(ratings, read(new, **options)).after
    same(ratings, read(used(rows, options), **options))


@pytest.mark.parametrize("options", OPTIONS)
@given(rows=logs, repeated=st.integers(1, 25))
def test_an_update_without_news_writes_the_same_arrays(options, rows, repeated):
    if not used(rows[-repeated:], options):
        return
    ratings = read(rows, **options)
    change = change_of(ratings, read(rows[-repeated:], **options))
    same(change.after, ratings)
    assert (change.n_added, change.n_removed, len(change.changed_users)) == (0, 0, 0)


@pytest.mark.parametrize("options", OPTIONS)
@given(rows=logs, users=st.sets(st.integers(0, 3), min_size=1, max_size=2))
def test_forgetting_is_a_reading_without_the_users(options, rows, users):
    known = {row[0] for row in used(rows, options)}
    others = [row for row in rows if row[0] not in users]
    if not (users & known and used(others, options)):
        return
    change = change_of(read(rows, **options), forget=sorted(users & known))
    same(
        change.after,
        read([row for row in rows if row[0] not in users & known], **options),
    )


@pytest.mark.parametrize("options", OPTIONS)
@given(rows=logs, days=st.integers(1, 6))
def test_a_window_is_a_reading_since_its_start(options, rows, days):
    remaining = used(rows, options)
    if not remaining:
        return
    newest = max(row[3] for row in remaining)
    change = change_of(read(rows, **options), window=float(days))
    later = read([row for row in remaining if row[3] >= newest - days], **options)
    # An older row may have come late: the order of the rows then says nothing of equal times.
    assert change.after.to_frame().rows() == later.to_frame().rows()
    assert told(change.after) == told(later)


def told(ratings):
    """The events, in no order."""
    log = ratings.log
    columns = [
        log.users,
        log.items,
        *(each for each in (log.kinds, log.seconds) if each is not None),
    ]
    return sorted(zip(*(each.tolist() for each in columns), strict=True))


@pytest.mark.parametrize("options", OPTIONS)
@few
@given(rows=logs)
def test_events_are_saved_with_a_model(options, rows, tmp_path_factory):
    if not used(rows, options):
        return
    ratings = read(rows, **options)
    path = tmp_path_factory.mktemp("saved") / "model"
    Recommender("popular").fit(ratings).save(path)
    same(Recommender.load(path).ratings, ratings)


def test_data_without_repetitions_keep_no_events():
    ratings = read([(1, 7, "view", 3), (1, 8, "view", 2), (2, 7, "view", 1)])
    assert ratings.events is None
    assert ratings.log.items.tolist() == [1, 0, 0]
    assert ratings.log.seconds is not None
    assert ratings.log.seconds.tolist() == [2, 3, 1]


def test_events_need_at_most_32_bytes_each_with_the_ratings():
    rng = np.random.default_rng(0)
    n = 50_000
    columns = {"user": rng.integers(0, 900, n), "item": rng.integers(0, 700, n)}
    columns |= {
        "event": rng.choice(["view", "buy"], n),
        "timestamp": rng.integers(0, 10**9, n),
    }
    frame = pl.DataFrame(columns).with_columns(event_id=pl.int_range(n).cast(pl.String))
    ratings = Ratings.from_frame(frame, event_weights=KINDS, half_life="90d")
    assert ratings.events is not None
    stored = [
        ratings.indices,
        ratings.data,
        ratings.seconds,
        *ratings.events.saved_arrays().values(),
    ]
    per_event = sum(array.nbytes for array in stored if array is not None) / n
    assert per_event <= 32


@pytest.mark.parametrize("has_repeats", [False, True])
def test_making_ratings_of_events_needs_at_most_32_bytes_each(has_repeats, monkeypatch):
    n_events, n_users = 200_000, 1_000
    tracemalloc.start()
    rng = np.random.default_rng(0)
    users = rng.integers(0, n_users, n_events).astype(np.int32)
    n_items = 300 if has_repeats else n_events
    items = rng.permutation(n_events).astype(np.int32) % n_items
    seconds = np.sort(rng.integers(0, 20_000, n_events)).astype(np.int32)  # with ties
    monkeypatch.setattr(csr, "_CHUNK", 1 << 12)
    monkeypatch.setattr(events_module, "_CHUNK", 1 << 12)
    entries = csr.Entries(users, items, seconds=seconds)
    del users, items, seconds
    tracemalloc.reset_peak()
    shape, rule = (n_users, n_items), EventRule("sum")
    collected = events_module.collect(entries, shape, rule, implicit=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert collected.events is not None
    assert peak <= 32 * n_events


def test_an_event_is_known_by_its_id():
    rows = {"user": [1, 1, 1, 1], "item": [7, 7, 7, 7], "time": [5, 5, 5, 6]}
    ids = ["a", "b", None, "a"]
    frame = pl.DataFrame({**rows, "event_id": ids})
    counts = Ratings.from_frame(frame, duplicates="sum")
    assert counts.values.tolist() == [3.0]  # "a" once, "b", and one without an id
    assert (
        "1 repeated row left out (the same event id; 1 with another user, item, value, time or "
        "kind: the first counts)"
    ) in str(counts.source)
    assert counts.n_duplicates == 3
    assert "; 3 duplicates (summed)" in str(counts.source)
    without = Ratings.from_frame(frame.drop("event_id"), duplicates="sum")
    assert without.values.tolist() == [2.0]
    assert "2 repeated rows left out (the same user, item, time and value" in str(
        without.source
    )
    again = change_of(counts, Ratings.from_frame(frame, duplicates="sum"))
    assert (again.n_added, again.n_repeated) == (0, 3)
    assert again.after.values.tolist() == [3.0]


def test_a_repeated_event_brings_no_other_user_or_item():
    rows = {"user": [1, 2, 3], "item": [7, 8, 9], "time": [5, 6, 7]}
    frame = pl.DataFrame({**rows, "event_id": ["a", "b", "a"]})
    ratings = Ratings.from_frame(frame, implicit=True)
    assert list(ratings.users) == [1, 2]
    assert list(ratings.items) == [7, 8]
    assert ratings.n_duplicates == 1
    assert "1 repeated row left out" in str(ratings.source)
    change = change_of(ratings, Ratings.from_frame(frame[2:], implicit=True))
    assert change.is_empty
    assert list(change.after.users) == [1, 2]
    assert list(change.after.items) == [7, 8]


@pytest.mark.parametrize("column", ["user", "item", "quantity", "time"])
def test_an_update_says_which_events_come_again_with_other_contents(column):
    rows = {"user": [1, 2], "item": [7, 8], "quantity": [1.0, 2.0], "time": [5, 6]}
    frame = pl.DataFrame({**rows, "event_id": ["a", "b"]})
    old = Ratings.from_frame(frame, weight="quantity")
    assert change_of(old, old).n_conflicts == 0
    changed = frame.with_columns(frame[column].reverse())
    change = change_of(old, Ratings.from_frame(changed, weight="quantity"))
    assert (change.n_added, change.n_repeated, change.n_conflicts) == (0, 2, 2)
    assert change.after.to_frame().equals(old.to_frame())


def test_hashes_of_ids_are_the_same_on_every_machine():
    keys = event_keys(pl.Series(["a", "b", None, "NULL", "a"]))
    assert keys[[2, 3]].tolist() == [0, 0]
    assert keys[0] == keys[4] != keys[1]
    assert (
        event_keys(pl.Series([17])).tolist() == event_keys(pl.Series(["17"])).tolist()
    )


@pytest.mark.parametrize(
    "ids", [[1.0, 2.0, None], [1.0, 2.0, np.nan], ["1.0", "2.0", None]]
)
def test_whole_numbers_that_were_stored_as_floats_are_the_ids_of_the_same_events(ids):
    rows = {
        "user": [1, 1, 2],
        "item": [7, 7, 8],
        "quantity": [1, 2, 3],
        "event_id": [1, 2, None],
    }
    first = Ratings.from_frame(
        pl.DataFrame(rows), weight="quantity", event_id="event_id"
    )
    again = Ratings.from_frame(
        pl.DataFrame(rows | {"event_id": ids}), weight="quantity", event_id="event_id"
    )
    updated = Recommender("popular").fit(first).update(again)
    assert updated.ratings.values.tolist()[0] == 3
    assert set(event_keys(pl.Series(ids))) == set(event_keys(pl.Series([1, 2, None])))


def test_rejects_ids_of_kinds_as_ids_of_events():
    n = 60
    rows = {"user": [k % 10 for k in range(n)], "item": [k % 12 for k in range(n)]}
    kinds = [k % 3 for k in range(n)]
    message = "3 different ids for 60 rows of different users or items"
    with pytest.raises(DataError, match=message):
        Ratings.from_frame(pl.DataFrame(rows | {"event_id": kinds}))
    several = pl.DataFrame(rows | {"event_id": list(range(n))})
    assert (
        Ratings.from_frame(pl.concat([several] * 5)).n_ratings == n
    )  # the same events


@pytest.mark.parametrize(
    "ids", [["7", "1.23457E+11"], [7.0, 2.0**60], [None, "9" * 17 + ".0"]]
)
def test_rejects_rounded_ids_of_events(ids):
    rows = {"user": [1, 1], "item": [7, 8], "event_id": ids}
    with pytest.raises(DataError, match=r"Row 2: event id .* rounded"):
        Ratings.from_frame(pl.DataFrame(rows))


def test_says_that_repetitions_cannot_be_told_without_times():
    rows = pl.DataFrame({"user": [1, 1], "item": [7, 7], "event": ["view", "view"]})
    ratings = Ratings.from_frame(rows, event_weights=KINDS)
    assert ratings.values.tolist() == [2.0]
    fitted = Recommender("popular").fit(ratings)
    updated = fitted.update(Ratings.from_frame(rows, event_weights=KINDS))
    assert updated.ratings.values.tolist() == [4.0]
    assert (
        "without times, a repeated event counts as a new one"
        in updated.training["changes"]
    )


def test_an_update_has_times_if_the_model_has():
    rows = pl.DataFrame({"user": [1, 2], "item": [7, 7], "rating": [3, 4]})
    timed = Ratings.from_frame(rows.with_columns(timestamp=pl.lit("2025-06-02")))
    untimed = Ratings.from_frame(rows)
    cure = "The new events have no times, but .* name the column of times with --timestamp-col"
    for news in (untimed, rows):
        with pytest.raises(DataError, match=cure):
            Recommender("bias").fit(timed).update(news)
    changes = Recommender("bias").fit(untimed).update(timed).training["changes"]
    assert (
        "the times of the new events are dropped, because the earlier ones" in changes
    )
    assert (
        "times" not in Recommender("bias").fit(timed).update(timed).training["changes"]
    )


def test_the_present_time_needs_times(tmp_path):
    rows = pl.DataFrame({"user": [1, 2], "item": [7, 7], "rating": [3, 4]})
    rows.write_csv(tmp_path / "r.csv")
    with pytest.raises(
        DataError, match="needs a column of times, which --timestamp-col"
    ):
        Ratings.from_frame(rows, as_of="2025-06-01")
    with pytest.raises(
        DataError, match="needs a column of times, which --timestamp-col"
    ):
        read_ratings(tmp_path / "r.csv", as_of="2025-06-01")
    fitted = Recommender("bias").fit(rows)
    with pytest.raises(DataError, match="needs a column of times"):
        fitted.update(rows, as_of="2025-06-01")
    for news in (None, Ratings.from_frame(rows)):
        with pytest.raises(
            DataError, match="needs times, and the events of the model have"
        ):
            fitted.update(news, as_of="2025-06-01")
    assert fitted.update(rows, refit=True).ratings.seconds is None


def test_kinds_without_a_weight_of_their_own_may_be_any_number():
    n = 300
    rows = {"user": [1] * n, "item": range(n), "event": [f"kind-{i}" for i in range(n)]}
    frame = pl.DataFrame(rows).with_columns(time=pl.int_range(n) + 1_700_000_000)
    weights = {"kind-7": 5.0, "*": 1.0}
    ratings = Ratings.from_frame(frame, event_weights=weights)
    assert (ratings.values.sum(), ratings.rule.kinds) == (n + 4, ("*", "kind-7"))
    some = [
        Ratings.from_frame(each, event_weights=weights)
        for each in (frame[:200], frame[200:])
    ]
    assert len(some[0].rule.kinds) == 200
    change = change_of(*some)
    same(change.after, ratings)
    dropped = Ratings.from_frame(frame, event_weights={"kind-7": 5.0, "*": 0.0})
    assert dropped.n_ratings == 1


def test_kinds_with_weights_of_their_own_have_codes_of_a_byte():
    n = 300
    rows = {"user": [1] * n, "item": range(n), "event": [f"kind-{i}" for i in range(n)]}
    weights = {f"kind-{i}": float(i + 1) for i in range(n)}
    with pytest.raises(DataError, match="at most 256 kinds of events; got 300"):
        Ratings.from_frame(pl.DataFrame(rows), event_weights=weights)


def test_three_nights_over_a_growing_journal(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    frame = pl.DataFrame(
        {
            "user": rng.integers(0, 20, n),
            "item": rng.integers(0, 15, n),
            "event": rng.choice(["view", "buy"], n),
            "time": np.sort(rng.integers(0, 10**6, n)) + 1_700_000_000,
        }
    )
    options = {"event_weights": KINDS, "half_life": "3d"}
    frame.write_csv(tmp_path / "all.csv")
    for night, end in enumerate((200, 300, 350, 400)):
        frame.head(end).write_csv(tmp_path / f"{night}.csv")
    model = Recommender("ials", factors=4, regularization=0.01, unobserved_weight=0.1)
    model.fit(read_ratings(tmp_path / "0.csv", **options)).save(tmp_path / "model")
    for night in (1, 2, 2, 3):
        updated = Recommender.load(tmp_path / "model").update(tmp_path / f"{night}.csv")
        updated.save(tmp_path / "model", overwrite=True)
    whole = read_ratings(tmp_path / "all.csv", **options)
    same(Recommender.load(tmp_path / "model").ratings, whole)
