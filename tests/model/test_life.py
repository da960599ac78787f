"""Random lives of a model: each operation is done by the product and by the reference.

``LIFE_STEPS=2000`` takes more steps than `make test`, and ``LIFE_SEED=7`` others.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import reference
from model.reference import DAY, Event, Setting, Shop

from recsys import Recommender, read_ratings
from recsys.errors import DataError

STEPS = int(os.environ.get("LIFE_STEPS", "300"))
SEED = int(os.environ.get("LIFE_SEED", "0"))
STEPS_OF_A_LIFE = 25
START = 1_700_000_000 // DAY * DAY

KINDS = {"view": 1.0, "buy": 3.0}
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("stars", grades=True, timed=True, policy="last", scale=(1.0, 5.0)),
        Setting("clicks", grades=False, timed=True, policy="last"),
        Setting("orders", grades=False, timed=True, policy="sum"),
        Setting("events", grades=False, timed=True, policy="sum", kinds=KINDS),
        Setting("untimed stars", grades=True, timed=False, policy="last", scale=(1, 5)),
        Setting("untimed orders", grades=False, timed=False, policy="sum"),
    )
}
READING: dict[str, dict[str, Any]] = {
    "stars": {"scale": (1, 5)},
    "clicks": {"implicit": True},
    "orders": {"weight": "quantity"},
    "events": {"event": "event", "event_weights": KINDS},
    "untimed stars": {"scale": (1, 5)},
    "untimed orders": {"weight": "quantity"},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "popular": {},
    "ease": {"regularization": 20.0},
}

users = st.integers(1, 9).map("u{}".format)
items = st.integers(1, 8).map("i{}".format)
events = st.builds(
    Event,
    users,
    items,
    st.integers(1, 5).map(float),
    st.sampled_from(sorted(KINDS)),
    # Few distinct times, so that many are equal.
    st.integers(0, 40).map(lambda day: START + day * DAY // 2),
)
some_events = st.lists(events, min_size=1, max_size=12)
FIRST = [
    Event(f"u{u}", f"i{i}", float(1 + (u * i) % 5), "view", START + (u + i) * DAY)
    for u in range(1, 7)
    for i in range(1, 7)
    if (u * 5 + i * 3) % 4
]


class Life(RuleBasedStateMachine):
    """A model that is fitted, updated, saved and questioned, next to the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="life-"))
        self.n_files = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # Operations

    @initialize(
        setting=st.sampled_from(sorted(SETTINGS)),
        model=st.sampled_from(sorted(PARAMETERS)),
        more=some_events,
    )
    def fit(self, setting: str, model: str, more: list[Event]) -> None:
        self.setting = SETTINGS[setting]
        self.name = model
        first, more = self._rows(FIRST), self._rows(more)
        data = self.folder / "data"
        data.mkdir()
        self._write(first, data / "1.csv")
        self._write(more, data / "2.csv")
        self.shop = Shop(self.setting).told(first + more)
        self.latest = more
        recommender = Recommender(model, **PARAMETERS[model])
        ratings = read_ratings(data, **READING[setting])
        self.recommender = recommender.fit(ratings)
        self._fitted()
        self._agree()

    @rule(rows=some_events, refit=st.sampled_from([None, True]))
    def update(self, rows: list[Event], refit: bool | None) -> None:
        self.latest = self._rows(rows)
        self._update(self.latest, refit=refit)

    @rule()
    def repeat_the_update(self) -> None:
        self._update(self.latest)

    @precondition(lambda self: self.setting.timed)
    @rule(days=st.sampled_from([3, 8, 15, 30]))
    def drop_older(self, days: int) -> None:
        self._update(window=days)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        user = data.draw(st.sampled_from(sorted(self.shop.users)))
        self._update(forget=user)

    @rule(rows=some_events, data=st.data())
    def update_and_forget(self, rows: list[Event], data: st.DataObject) -> None:
        user = data.draw(st.sampled_from(sorted(self.shop.users)))
        self._update(self._rows(rows), forget=user)

    @rule()
    def save_and_load(self) -> None:
        self.recommender.save(self.folder / "model", overwrite=True)
        self.recommender = Recommender.load(self.folder / "model")
        self._agree()

    @rule(
        user=users,
        n=st.integers(1, 9),
        include_seen=st.booleans(),
        chosen=st.none() | st.sets(items, min_size=1, max_size=5),
        block=st.sets(items, max_size=3),
    )
    def ask(
        self,
        user: str,
        n: int,
        include_seen: bool,
        chosen: set[str] | None,
        block: set[str],
    ) -> None:
        if user not in self.shop.users:
            return
        chosen = None if chosen is None else chosen & self.shop.items
        history = self.shop.history(user)
        if chosen == set() or not history:
            return
        block &= self.shop.items
        filters = {"items": chosen, "block": block, "include_seen": include_seen}
        got = self._from_python(user, n, **filters)
        candidates = reference.listed(self._scores(history), history, n=n, **filters)
        assert not (problem := reference.disagreement(got, candidates, n)), problem

    # The product

    def _from_python(
        self,
        user: str,
        n: int,
        items: set[str] | None,
        block: set[str],
        include_seen: bool,
    ) -> list[tuple[str, float]]:
        frame = self.recommender.recommend(
            user,
            n,
            items=None if items is None else sorted(items),
            block=sorted(block) or None,
            exclude_seen=not include_seen,
        )
        return list(zip(frame["item"], frame["score"], strict=True))

    def _update(self, rows: list[Event] | None = None, **options: Any) -> None:
        """Update both, which change or raise together, and compare them."""
        refit = options.pop("refit", None)
        try:
            shop = self.shop.updated(rows or (), **options)
        except reference.NothingLeftError:
            expected: str | None = "No rating would be left"
        except reference.FewLeftError:
            expected = "counts from the newest event"
        else:
            expected = None
        if (days := options.get("window")) is not None:
            options["window"] = f"{days}d"
        path = None
        if rows is not None:
            self.n_files += 1
            path = self._write(rows, self.folder / f"new-{self.n_files}.csv")
        if expected is not None:
            with pytest.raises(DataError, match=expected):
                self.recommender.update(path, refit=refit, **options)
            return
        updated = self.recommender.update(path, refit=refit, **options)
        self.shop, self.recommender = shop, updated
        if "fitted again" in updated.training["update"]:
            self._fitted()
        self._agree()

    def _rows(self, rows: list[Event]) -> list[Event]:
        """Return rows with the columns that the setting has."""
        blank = Event("", "")
        changes: dict[str, Any] = {}
        if not self.setting.timed:
            changes["time"] = None
        if not self.setting.kinds:
            changes["kind"] = blank.kind
        if self.setting.name in ("clicks", "events"):
            changes["value"] = blank.value
        return [event._replace(**changes) for event in rows]

    def _write(self, rows: list[Event], path: Path) -> Path:
        columns = {"user": "user", "item": "item"}
        if self.setting.grades:
            columns["value"] = "rating"
        elif "orders" in self.setting.name:
            columns["value"] = "quantity"
        if self.setting.kinds:
            columns["kind"] = "event"
        if self.setting.timed:
            columns["time"] = "timestamp"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns.values())
            for event in rows:
                writer.writerow([getattr(event, name) for name in columns])
        return path

    # The comparison

    def _fitted(self) -> None:
        """Fit the reference."""
        table = self.shop.table
        if self.name == "popular":
            self.model: Any = reference.Popular(table, self.setting)
        elif self.name == "ease":
            self.model = reference.Ease(table, self.setting, 20.0, 0.2)

    def _scores(self, history: reference.Scores) -> reference.Scores:
        """Return the scores of all items with ratings."""
        rated = {item for _, item in self.shop.ratings}
        scores = self.model.scores(history)
        return {item: score for item, score in scores.items() if item in rated}

    def _agree(self) -> None:
        """Compare ids, ratings and events."""
        ratings, shop = self.recommender.ratings, self.shop
        user_ids, item_ids = list(ratings.users.values), list(ratings.items.values)
        assert set(user_ids) == shop.users
        assert set(item_ids) == shop.items
        rows = ratings.user_index_of_nonzeros()
        times = [None] * ratings.nnz
        if ratings.seconds is not None:
            times = np.asarray(ratings.seconds, np.int64).tolist()
        got = {}
        for row, column, value, time in zip(
            rows, ratings.indices, ratings.values, times, strict=True
        ):
            got[user_ids[row], item_ids[column]] = (float(value), time)
        assert got == dict(shop.ratings)
        if not self.setting.timed:
            return
        log = ratings.log
        values = np.ones(len(log)) if log.values is None else log.values.at()
        kinds = [""] * len(log)
        if log.kinds is not None:
            kinds = [ratings.rule.kinds[code] for code in log.kinds]
        events: dict[str, list[Event]] = {}
        for at, row in enumerate(log.users):
            user = user_ids[row]
            event = Event(
                user,
                item_ids[log.items[at]],
                float(values[at]),
                kinds[at],
                int(log.seconds[at]),
            )
            events.setdefault(user, []).append(event)
        assert events == shop.log


@pytest.mark.filterwarnings("ignore")
def test_life() -> None:
    """The product agrees with the reference after each of some hundred operations."""
    lives = settings(
        max_examples=max(1, STEPS // STEPS_OF_A_LIFE),
        stateful_step_count=STEPS_OF_A_LIFE,
        deadline=None,
        derandomize=False,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    run_state_machine_as_test(seed(SEED)(Life), settings=lives)
