"""Random lives of a model: each operation is done by the product and by the reference.

``LIFE_STEPS=20000`` takes more steps than `make test`, and ``LIFE_SEED=7`` others. Shrinking a
failure takes up to five minutes; ``LIFE_SHRINK=0`` leaves it out. One step in some 500 starts
processes of their own.
"""

from __future__ import annotations

import csv
import faulthandler
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from click.testing import CliRunner
from forked_commands import CAN_FORK, started
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
from model.reference import DAY, Event, Rating, Setting, Shop
from serving import Application, Command

from recsys import Ratings, Recommender, leave_last_split, read_ratings, time_split
from recsys.cli.main import cli
from recsys.errors import DataError
from recsys.saving.versions import promote
from recsys.serve import create_app

STEPS = int(os.environ.get("LIFE_STEPS", "2000"))
SEED = int(os.environ.get("LIFE_SEED", "0"))
STEPS_OF_A_LIFE = 20
PHASES = [Phase.generate, Phase.shrink]
if os.environ.get("LIFE_SHRINK") == "0":
    PHASES.remove(Phase.shrink)
# Seconds, of which an update takes some; a process that is not forked imports first.
MOMENT = 0.02 if CAN_FORK else 0.25
START = 1_700_000_000 // DAY * DAY

KINDS = {"view": 1.0, "buy": 3.0, "like": 2.0}
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("stars", grades=True, timed=True, policy="last", scale=(1.0, 5.0)),
        Setting("first stars", grades=True, timed=True, policy="first", scale=(1, 5)),
        Setting("mean stars", grades=True, timed=True, policy="mean", scale=(1, 5)),
        Setting("clicks", grades=False, timed=True, policy="last"),
        Setting("orders", grades=False, timed=True, policy="sum"),
        Setting("events", grades=False, timed=True, policy="sum", kinds=KINDS),
        Setting(
            "events and orders", grades=False, timed=True, policy="sum", kinds=KINDS
        ),
        Setting(
            "numbered orders", grades=False, timed=True, policy="sum", numbered=True
        ),
        # Weights of whole numbers never cancel out by chance at such ages.
        Setting(
            "fading orders", grades=False, timed=True, policy="sum", half_life=11.3
        ),
        Setting("untimed stars", grades=True, timed=False, policy="last", scale=(1, 5)),
        Setting("untimed orders", grades=False, timed=False, policy="sum"),
    )
}
READING: dict[str, dict[str, Any]] = {
    "stars": {"scale": (1, 5)},
    "first stars": {"scale": (1, 5), "duplicates": "first"},
    "mean stars": {"scale": (1, 5), "duplicates": "mean"},
    "clicks": {"implicit": True},
    "orders": {"weight": "quantity"},
    "events": {"event": "event", "event_weights": KINDS},
    "events and orders": {
        "event": "event",
        "event_weights": KINDS,
        "weight": "quantity",
    },
    "numbered orders": {"weight": "quantity", "event_id": "id"},
    "fading orders": {"weight": "quantity", "half_life": "11.3d"},
    "untimed stars": {"scale": (1, 5)},
    "untimed orders": {"weight": "quantity"},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "popular": {},
    "bias": {"tol": 1e-7, "iterations": 500},
    "als": {"factors": 3, "iterations": 4},
    "ials": {
        "factors": 3,
        "regularization": 0.05,
        "unobserved_weight": 0.2,
        "iterations": 4,
    },
    "ease": {"regularization": 20.0},
    "next": {"neighbors": 0},
}

# Rules of processes run one time in 31: there are two of some 15 rules, so one step in 230 draws
# one, and half of these begin without a model. A failure shrinks to other steps first.
rarely = st.integers(0, 30).map(lambda number: number == 17)

users = st.integers(1, 9).map("u{}".format)
items = st.integers(1, 9).map("i{}".format)
events = st.builds(
    Event,
    users,
    items,
    st.integers(1, 5).map(float),
    st.sampled_from(sorted(KINDS)),
    # Few distinct times, so that many are equal.
    st.integers(0, 40).map(lambda day: START + day * DAY // 2),
    # Few distinct ids, so that an event may come again with another user.
    st.just("") | st.integers(1, 12).map("e{}".format),
)
some_events = st.lists(events, min_size=1, max_size=12)
# Files have rows that come twice.
some_events |= some_events.map(lambda rows: [*rows, rows[0]])
# A purchase may follow a view within its second.
some_events |= some_events.map(lambda rows: [*rows, _of_another_kind(rows[0])])
# A new user may come with a new item alone, and later than all others.
some_events |= st.integers(10, 99).map(
    lambda n: [Event(f"u{n}", f"i{n}", float(1 + n % 4), "buy", START + n * DAY // 3)]
)
some_weights = st.fixed_dictionaries(
    dict.fromkeys(sorted(KINDS), st.sampled_from([0.5, 1.0, 2.0, 4.0]))
)
# No pair comes twice, and some times do, of items that are not in the order of their ids.
PLAIN = [
    Event(
        f"u{u}", f"i{i}", float(1 + (u * i) % 5), "view", START + (u + 4 - i // 2) * DAY
    )
    for u in range(1, 7)
    for i in range(6, 0, -1)
    if (u * 5 + i * 3) % 4
]
# Some of these purchases are returned in part or as a whole, as the latest events of their users.
RETURNS = [
    Event(event.user, event.item, 5.0, "view", START + 12 * DAY)
    for event in PLAIN
    if event.value == 4 or (event.value == 1 and event.item in ("i2", "i3"))
]
# An item that leaves with its only user or by its age, and changes no other item.
ALONE = [Event("u0", "i0", 2.0, "buy", START - 15 * DAY)]
# A long history, in which items come again.
VISITS = [
    Event("u7", f"i{1 + n * n % 7}", float(1 + n % 4), "buy", START + n * DAY // 2)
    for n in range(40)
]


def _of_another_kind(event: Event) -> Event:
    return event._replace(kind="like" if event.kind == "buy" else "buy")


def pairs_of(ratings: Ratings) -> dict[tuple[str, str], Rating]:
    """Return ratings by their pairs of ids."""
    users, items = ratings.users.values, ratings.items.values
    times = [None] * ratings.nnz
    if ratings.seconds is not None:
        times = np.asarray(ratings.seconds, np.int64).tolist()
    rows, columns = ratings.user_index_of_nonzeros(), ratings.indices
    return {
        (users[int(row)], items[int(column)]): Rating(float(value), time)
        for row, column, value, time in zip(
            rows, columns, ratings.values, times, strict=True
        )
    }


def _own_time(event: Event) -> int:
    """Return a time that no other event of the user has."""
    number = 1000 * int(event.id[1:] or 0) + 10 * int(event.item[1:]) + int(event.value)
    return (event.time or 0) + 10 * number + ["", *KINDS].index(event.kind)


def near(expected: Any) -> Any:
    return pytest.approx(expected, abs=2e-4)


class Life(RuleBasedStateMachine):
    """A model that is fitted, updated, saved and questioned, next to the reference."""

    setting: Setting  # of all lives of a test

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="life-"))
        self.n_files = 0
        self.saved: Recommender | None = None
        self.is_changed = True  # since the last fit to a file of all remaining events

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # Operations

    @initialize(
        model=st.sampled_from([*PARAMETERS, "ials", "next", "next"]),
        is_plain=st.sampled_from([True, False, False]),
        more=st.just([]) | some_events,
    )
    def fit(self, model: str, is_plain: bool, more: list[Event]) -> None:
        self.weights = self.setting.kinds
        if model in ("bias", "als") and not self.setting.grades:
            model = "ials"
        if model == "next" and not self.setting.timed:
            model = "ease"
        self.name = model
        first = PLAIN if is_plain else ALONE + PLAIN + RETURNS + VISITS
        first, more = self._rows(first), self._rows(more)
        data = self.folder / "data"
        data.mkdir()
        self._write(first, data / "1.csv")
        if more:
            self._write(more, data / "2.csv")
        self.shop = Shop(self.setting).told(first + more)
        self.latest = more or first
        recommender = Recommender(model, **PARAMETERS[model])
        self.recommender = recommender.fit(
            read_ratings(data, **READING[self.setting.name])
        )
        self._fitted()
        self._agree()

    @rule(rows=some_events, refit=st.sampled_from([None, True]))
    def update(self, rows: list[Event], refit: bool | None) -> None:
        self.latest = self._rows(rows)
        self._update(self.latest, refit=refit)

    @precondition(lambda self: self.setting.kinds)
    @rule(rows=st.none() | some_events, weights=some_weights)
    def weigh_kinds_again(
        self, rows: list[Event] | None, weights: dict[str, float]
    ) -> None:
        """Give kinds other weights, which older events get, too, also if none is new."""
        if rows is not None:
            self.latest = self._rows(rows)
        self._update(self.latest, weights=weights)

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
        self.recommender = Recommender.load(self._saved())
        self._agree()

    @rule()
    def load_by_link(self) -> None:
        """Load the model by a link, which moves to another version while the model is used."""
        self.n_files += 1
        version, other = (
            self.folder / "versions" / f"{self.n_files}-{name}" for name in "ab"
        )
        version.parent.mkdir(exist_ok=True)
        self.recommender.save(version)
        shutil.copytree(version, other)
        link = version.parent / "latest"
        promote(version)
        self.recommender = Recommender.load(link)
        promote(other)
        assert link.resolve().name == other.name
        if (
            os.name == "posix"
        ):  # its arrays are mapped, which Windows keeps from removal
            shutil.rmtree(version)
        self._agree()

    @rule(is_run=rarely, rows=some_events, share=st.integers(1, 9))
    def kill_an_update(self, is_run: bool, rows: list[Event], share: int) -> None:
        """Kill an update at any moment, find the old or the new model, and update again."""
        if not is_run:
            return
        rows = self._rows(rows)
        try:
            shop = self.shop.updated(rows, weights=self.weights)
        except (reference.NothingLeftError, reference.FewLeftError):
            return
        place = self._saved()
        before = (place / "model.json").read_bytes()
        self.n_files += 1
        path = self._write(rows, self.folder / f"new-{self.n_files}.csv")
        words = ["update", str(place), str(path), "--force", "-q"]
        with started(words) as process:
            time.sleep(MOMENT * share)
            process.kill()
        left = Recommender.load(place)
        is_complete = (place / "model.json").read_bytes() != before
        expected = shop if is_complete else self.shop
        self._compare_ratings(pairs_of(left.ratings), expected.ratings)
        # Without times, a repetition cannot be told.
        if self.setting.timed or not is_complete:
            with started(words) as process:
                assert process.wait(120) == 0
        self.latest, self.saved = rows, None
        # The repetition of a complete update fits nothing.
        if is_complete:
            self._take(left, shop)
        self._take(Recommender.load(place), shop)

    @rule(is_run=rarely, user=users)
    def serve_kill_and_restart(self, is_run: bool, user: str) -> None:
        """Serve by HTTP, kill the service, and start it again."""
        if not is_run or not self.shop.history(user):
            return
        place = self._saved()
        for number in (getattr(signal, "SIGKILL", signal.SIGTERM), signal.SIGTERM):
            with Command(place) as service:
                reply = service.get(f"/v1/recommend/{user}?n=4")
                service.stop(number)
            assert reply.status == 200, reply.body
            got = [(row["item"], row["score"]) for row in reply.json["items"]]
            self._check_list(user, 4, "HTTP", got)

    @rule(
        user=users,
        n=st.integers(1, 9),
        include_seen=st.booleans(),
        chosen=st.none() | st.sets(items, min_size=1, max_size=5),
        block=st.sets(items, max_size=3),
        door=st.sampled_from([*["python"] * 8, *["command"] * 3, "service"]),
    )
    def ask(
        self,
        user: str,
        n: int,
        include_seen: bool,
        chosen: set[str] | None,
        block: set[str],
        door: str,
    ) -> None:
        if user not in self.shop.users:
            return
        # Unknown items are an error, and so is a choice of none.
        chosen = None if chosen is None else chosen & self.shop.items
        if chosen == set() or not self.shop.history(user):
            return
        block &= self.shop.items
        self._compare_list(
            user, n, door, items=chosen, block=block, include_seen=include_seen
        )

    @rule(history=st.dictionaries(items, st.integers(1, 5).map(float), min_size=1))
    def fold_in(self, history: dict[str, float]) -> None:
        rated = {item for _, item in self.shop.ratings}
        history = {item: x for item, x in history.items() if item in rated}
        if not history or set(history) == rated:
            return
        told: Any = history
        if self.setting.name == "clicks":
            history = dict.fromkeys(history, 1.0)
            told = list(history)
        frame = self.recommender.recommend(history=told, n=4)
        got = list(zip(frame["item"], frame["score"], strict=True))
        candidates = reference.listed(self._scores(history), history)
        problem = reference.disagreement(got, candidates, 4)
        assert problem is None, problem

    @precondition(lambda self: self.is_changed)
    @rule()
    def fit_again(self) -> None:
        """Fit to a file of all remaining events, which a refit equals to the bit."""
        if not self.shop.ratings:
            return
        path = self._write(list(self.shop.rows), self.folder / "remaining.csv")
        ratings = self._read(path, self.shop.setting.kinds)
        fresh = Recommender(self.name, **PARAMETERS[self.name]).fit(ratings)
        self._update(refit=True)
        again = self.recommender
        assert list(fresh.ratings.users.values) == list(again.ratings.users.values)
        arrays, others = fresh.model._arrays(), again.model._arrays()
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            assert np.array_equal(array, others[name]), name
        self.is_changed = False

    @precondition(lambda self: self.setting.timed)
    @rule(data=st.data())
    def split_by_time(self, data: st.DataObject) -> None:
        times = sorted({event.time for event in self.shop.rows})
        if len(times) < 2:
            return
        cut = data.draw(st.sampled_from(times[1:]))
        parts = reference.Parts.by_time(self.shop, cut)
        if not parts.test or not parts.train:
            return
        split = time_split(self.recommender.ratings, cut=cut)
        self._compare_ratings(pairs_of(split.train), parts.train)
        self._compare_ratings(pairs_of(split.test), parts.test)

    @precondition(lambda self: self.setting.timed)
    @rule()
    def leave_last(self) -> None:
        parts = reference.Parts.leave_last(self.shop)
        if not parts.test:
            return
        split = leave_last_split(self.recommender.ratings)
        # The order of equal times is random unless all rows are in the order of time.
        are_random = self.shop.unordered or len({e.time for e in self.shop.rows}) == 1
        tied = {
            user
            for user, events in self.shop.log.items()
            if are_random and len({e.time for e in events}) < len(events)
        }
        got, expected = (
            {pair: rating for pair, rating in part.items() if pair[0] not in tied}
            for part in (pairs_of(split.test), parts.test)
        )
        self._compare_ratings(got, expected)

    # The product

    @property
    def doors(self) -> dict[str, Callable[..., list[tuple[str, float]]]]:
        return {
            "python": self._from_python,
            "command": self._from_the_command,
            "service": self._from_the_service,
        }

    def _from_python(
        self,
        user: str,
        n: int,
        items: set[str] | None = None,
        block: set[str] = frozenset(),
        include_seen: bool = False,
    ) -> list[tuple[str, float]]:
        frame = self.recommender.recommend(
            user,
            n,
            items=None if items is None else sorted(items),
            block=sorted(block) or None,
            exclude_seen=not include_seen,
        )
        return list(zip(frame["item"], frame["score"], strict=True))

    def _from_the_command(
        self,
        user: str,
        n: int,
        items: set[str] | None,
        block: set[str],
        include_seen: bool,
    ) -> list[tuple[str, float]]:
        words = ["recommend", self._saved(), "--user", user, "-n", n, "--json", "-q"]
        for option, ids in (("--items", items), ("--block", block)):
            if ids:
                path = self.folder / f"{option[2:]}.txt"
                path.write_text("\n".join(sorted(ids)))
                words += [option, path]
        if include_seen:
            words.append("--include-seen")
        result = CliRunner().invoke(cli, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return [(r["item"], r["score"]) for r in json.loads(result.stdout)["rows"]]

    def _from_the_service(
        self,
        user: str,
        n: int,
        items: set[str] | None,
        block: set[str],
        include_seen: bool,
    ) -> list[tuple[str, float]]:
        query = [("n", n), *(("items", item) for item in sorted(items or ()))]
        query += [("exclude", item) for item in sorted(block)]
        if include_seen:
            query.append(("include_seen", "true"))
        with Application(create_app(str(self._saved()))) as service:
            service.ready()
            reply = service.get(f"/v1/recommend/{user}?{urlencode(query)}")
        assert reply.status == 200, reply.body
        return [(row["item"], row["score"]) for row in reply.json["items"]]

    def _saved(self) -> Path:
        path = self.folder / "model"
        if self.saved is not self.recommender:
            self.recommender.save(path, overwrite=True)
            self.saved = self.recommender
        return path

    def _update(
        self,
        rows: list[Event] | None = None,
        weights: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        """Update both, which change or raise together, and compare them."""
        refit = options.pop("refit", None)
        new_weights = self.weights if weights is None else weights
        try:
            shop = self.shop.updated(rows or (), weights=new_weights, **options)
        except reference.NothingLeftError:
            expected: str | None = "No rating would be left"
        except reference.FewLeftError:
            expected = "counts from the newest event"
        else:
            expected = None
        if (days := options.get("window")) is not None:
            options["window"] = f"{days}d"
        new: Path | Ratings | None = None
        if rows is not None:
            self.n_files += 1
            new = self._write(rows, self.folder / f"new-{self.n_files}.csv")
            if weights is not None:
                new = self._read(new, weights)
        if expected is not None:
            with pytest.raises(DataError, match=expected):
                self.recommender.update(new, refit=refit, **options)
            return
        self.weights = new_weights
        self._take(self.recommender.update(new, refit=refit, **options), shop)

    def _take(self, updated: Recommender, shop: Shop) -> None:
        """Go on with an updated model, for which the reference is fitted where it was."""
        folded_before = self.recommender.training.get("folded", 0)
        folded = updated.training.get("folded", 0)
        aged = self.recommender.training.get("aged", 0.0)
        has_vectors = self.name in ("bias", "als", "ials")
        if has_vectors:
            vectors = self._vectors("user"), self._vectors("item")
        before, self.shop = self.shop, shop
        self.recommender = updated
        self.is_changed = True
        if "fitted again" in updated.training["update"]:
            assert folded == 0
            self._fitted()
            self._agree()
            return
        # Many small updates are to lead to a fit as a large one does.
        n_changes = len({*before.rows} ^ {*shop.rows})
        if self.setting.timed:
            assert folded == folded_before + n_changes
        assert folded >= folded_before
        assert not n_changes or folded <= 0.2 * len(before.ratings)
        if self.setting.half_life is not None:
            days = max(0, shop.latest_rating - before.latest_rating) / DAY
            aged += days / self.setting.half_life
            assert updated.training.get("aged", 0.0) == near(aged)
            assert aged < 1
        if has_vectors:
            items = reference.folded_items(before, shop, self.model, *vectors)
            for item, vector in self._vectors("item").items():
                assert vector == near(items[item]), item
            self.model = self._of_items()
        self._agree()

    def _read(self, path: Path, weights: Mapping[str, float]) -> Ratings:
        """Read a file, with weights of the kinds of events if it has kinds."""
        reading = READING[self.setting.name]
        if weights:
            reading = reading | {"event_weights": weights}
        return read_ratings(path, **reading)

    def _rows(self, rows: list[Event]) -> list[Event]:
        """Return rows with the columns that the setting has."""
        blank = Event("", "")
        changes: dict[str, Any] = {}
        if not self.setting.timed:
            changes["time"] = None
        if not self.setting.kinds:
            changes["kind"] = blank.kind
        if not self.setting.numbered:
            changes["id"] = blank.id
        if self.setting.name in ("clicks", "events"):
            changes["value"] = blank.value
        rows = [event._replace(**changes) for event in rows]
        if self.name == "next":
            # Events of one time would be in a random order, or one visit.
            rows = [event._replace(time=_own_time(event)) for event in rows]
        if "orders" in self.setting.name:  # some of them are returned
            return [e._replace(value=-1.0) if e.value == 5 else e for e in rows]
        return rows

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
        if self.setting.numbered:
            columns["id"] = "id"
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
        elif self.name == "next":
            shares = map(float, self.recommender.model.shares)
            self.model = reference.Next(self.shop, shares, 20.0, 0.25)
        else:
            self.model = self._of_items()
        if self.name == "bias":
            expected = reference.Baseline(table, damping=5.0)
            assert self.model.mean == pytest.approx(expected.mean)
            model = self.recommender.model
            assert self._by_id("user", model.user_bias) == near(expected.of_users)
            assert self.model.biases == near(expected.of_items)
        if self.name in ("bias", "als"):
            assert self.model.obscurity == near(
                {
                    item: 0.3 * behind
                    for item, behind in reference.obscurities(table).items()
                }
            )

    def _by_id(self, side: str, values: Any) -> dict[str, Any]:
        ids = self.recommender.ratings.axis(side).ids.values
        return dict(zip(ids, np.asarray(values, float), strict=True))

    def _vectors(self, side: str) -> reference.Vectors:
        """Return the factors of users or items, with their biases last."""
        model: Any = self.recommender.model
        columns = []
        if self.name != "bias":
            columns.append(getattr(model, f"{side}_factors"))
        if self.name != "ials":
            columns.append(getattr(model, f"{side}_bias")[:, None])
        return self._by_id(side, np.hstack(columns))

    def _of_items(self) -> Any:
        """Return the reference that solves for a user, with the items of the model.

        The items are what a long iteration has made of them; each user is exact.
        """
        model: Any = self.recommender.model
        if self.name == "ials":
            factors = self._by_id("item", model.item_factors)
            return reference.Implicit(
                factors,
                model.unit,
                model.penalty,
                model.pair_weight,
            )
        biases = self._by_id("item", model.item_bias)
        shared = {
            "mean": float(model.global_mean),
            "biases": biases,
            "obscurity": self._by_id("item", 0.3 * model.item_obscurity),
        }
        if self.name == "bias":
            none = dict.fromkeys(biases, np.zeros(0))
            return reference.Biased(
                **shared, factors=none, penalty=1.0, bias_penalty=5.0, power=0.0
            )
        return reference.Biased(
            **shared,
            factors=self._by_id("item", model.item_factors),
            penalty=1.3 * model.rating_std,
            bias_penalty=1.3,
            power=0.5,
        )

    def _scores(self, history: reference.Scores) -> reference.Scores:
        """Return the scores of all items but those whose interactions were all returned."""
        rated = {item for _, item in self.shop.ratings}
        scores = self.model.scores(history)
        return {item: score for item, score in scores.items() if item in rated}

    def _agree(self) -> None:
        """Compare ids, ratings and events, and one list of each user."""
        self._compare_events()
        frame = self.recommender.recommend(n=4)
        lists: dict[str, list[tuple[str, float]]] = {}
        for user, item, score in frame.select("user", "item", "score").iter_rows():
            lists.setdefault(user, []).append((item, score))
        for user in sorted(self.shop.users):
            if self.shop.history(user):
                self._check_list(user, 4, "all users", lists.get(user, []))

    def _compare_list(self, user: str, n: int, door: str, **filters: Any) -> None:
        self._check_list(user, n, door, self.doors[door](user, n, **filters), **filters)

    def _check_list(
        self,
        user: str,
        n: int,
        door: str,
        got: list[tuple[str, float]],
        **filters: Any,
    ) -> None:
        history = self.shop.history(user)
        candidates = reference.listed(self._scores(history), history, **filters)
        problem = reference.disagreement(got, candidates, n)
        assert problem is None, f"{door}, {user}: {problem}"

    def _compare_ratings(
        self,
        got: dict[tuple[str, str], Rating],
        expected: dict[tuple[str, str], Rating],
    ) -> None:
        """Compare ratings, which are equal to the bit but for means and weights that fade."""
        if self.setting.half_life is not None or self.setting.policy == "mean":
            values = {pair: rating.value for pair, rating in expected.items()}
            assert {pair: r.value for pair, r in got.items()} == near(values)
            got = {pair: r._replace(value=values[pair]) for pair, r in got.items()}
        assert got == expected

    def _compare_events(self) -> None:
        """Compare ids, ratings and events."""
        ratings, shop = self.recommender.ratings, self.shop
        user_ids, item_ids = list(ratings.users.values), list(ratings.items.values)
        assert set(user_ids) == shop.users
        assert set(item_ids) == shop.items
        self._compare_ratings(pairs_of(ratings), shop.ratings)
        if not self.setting.timed:
            return
        # It decides between equal times in the updates to come.
        in_order = dict(zip(user_ids, ratings.in_time_order, strict=True))
        assert shop.unordered == {user for user in user_ids if not in_order[user]}
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
        # Ids are kept as hashes.
        assert events == {
            user: [event._replace(id="") for event in own]
            for user, own in shop.log.items()
        }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("setting", SETTINGS)
def test_life(setting: str) -> None:
    """The product agrees with the reference after each of some hundred operations."""
    # Many steps take longer than a test may, and so may the search for the shortest failure.
    faulthandler.cancel_dump_traceback_later()
    steps = STEPS // len(SETTINGS)
    lives = settings(
        max_examples=max(1, steps // STEPS_OF_A_LIFE),
        stateful_step_count=STEPS_OF_A_LIFE,
        deadline=None,
        derandomize=False,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=PHASES,
    )
    of_setting = type("Life", (Life,), {"setting": SETTINGS[setting]})
    try:
        run_state_machine_as_test(seed(SEED)(of_setting), settings=lives)
    except Exception as error:
        error.add_note(
            f'The same lives: LIFE_SEED={SEED} LIFE_STEPS={STEPS}, -k "{setting}"'
        )
        raise
