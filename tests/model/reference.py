"""The product once more, slow and obvious: dictionaries, lists and dense matrices.

Nothing here imports `recsys`. Events are rows in the order in which they came, all is computed
from them again each time, and each rule of the documentation is a few lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Scores = dict[str, float]
Vectors = dict[str, Matrix]
DAY = 86_400


class Event(NamedTuple):
    """A row of a file."""

    user: str
    item: str
    value: float = 1.0
    kind: str = ""
    time: int | None = None
    id: str = ""


class Rating(NamedTuple):
    """What the events of a pair become."""

    value: float
    time: int | None


@dataclass(frozen=True)
class Setting:
    """How events are read: whether they are grades, how those of a pair are merged."""

    name: str
    grades: bool
    timed: bool
    policy: str
    kinds: Mapping[str, float] = field(default_factory=dict)
    scale: tuple[float, float] | None = None
    half_life: float | None = None  # days
    numbered: bool = False

    def weight(self, event: Event) -> float:
        return event.value * self.kinds.get(event.kind, 1.0)


class NothingLeftError(Exception):
    """No rating would be left."""


class FewLeftError(Exception):
    """A few events would decide that a window drops nearly all."""


@dataclass(frozen=True)
class Shop:
    """All that was told and is still there."""

    setting: Setting
    rows: tuple[Event, ...] = ()
    unordered: frozenset[str] = frozenset()
    window: float | None = None

    def told(self, new: Iterable[Event]) -> Shop:
        """Return the shop after some more rows, those with a time once each."""
        part = self._distinct(tuple(new))
        rows = self._distinct(self.rows + part)
        return self._with_rows(rows, part)

    def _distinct(self, rows: tuple[Event, ...]) -> tuple[Event, ...]:
        if not self.setting.timed:
            return rows
        first: dict[str | Event, Event] = {}
        for event in rows:
            first.setdefault(event.id or event, event)
        return tuple(first.values())

    def _with_rows(self, rows: tuple[Event, ...], part: tuple[Event, ...]) -> Shop:
        """Return the shop with some rows, of which a part was read last."""
        unordered = self.unordered | _unordered_users(part) | _unordered_users(rows)
        unordered &= {event.user for event in rows}
        return replace(self, rows=rows, unordered=unordered)

    def updated(
        self,
        new: Iterable[Event] = (),
        window: float | None = None,
        forget: str | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> Shop:
        """Return the shop after an update: forgotten users first, then the window.

        The weights of kinds are read with the new rows, and hold for all rows of these kinds.
        """
        window = self.window if window is None else window
        part = self._distinct(tuple(new))
        if weights:
            read = {event.kind: weights[event.kind] for event in part}
            setting = replace(self.setting, kinds={**self.setting.kinds, **read})
            return replace(self, setting=setting).updated(new, window, forget)
        told = tuple(event for event in self.rows + part if event.user != forget)
        first = -np.inf
        if window is not None and told:
            times = np.array([event.time for event in told])
            first = times.max() - window * DAY
            n_stay = int((times >= first).sum())
            if n_stay <= 0.05 * len(times):
                raise FewLeftError
            told = tuple(event for event in told if (event.time or 0) >= first)
        # A row outside of the window does not count as the first one with its id.
        rows = self._distinct(told)
        # Users whose new rows are all outside of the window do not come, in no order.
        came = {event.user for event in part if (event.time or 0) >= first}
        part = tuple(event for event in part if event.user in came)
        shop = replace(self._with_rows(rows, part), window=window)
        if not shop.ratings:
            raise NothingLeftError
        return shop

    @cached_property
    def users(self) -> set[str]:
        return {event.user for event in self.rows}

    @cached_property
    def items(self) -> set[str]:
        return {event.item for event in self.rows}

    @cached_property
    def newest(self) -> int:
        return max(event.time or 0 for event in self.rows)

    @property
    def latest_rating(self) -> int:
        return max(rating.time or 0 for rating in self.ratings.values())

    def weight(self, event: Event) -> float:
        """Return the weight of an event at its age."""
        weight = self.setting.weight(event)
        if self.setting.half_life is None:
            return weight
        age = (self.newest - (event.time or 0)) / DAY
        return weight * 0.5 ** (age / self.setting.half_life)

    @cached_property
    def log(self) -> dict[str, list[Event]]:
        """The events of each user in the order of time.

        Of equal times, the order of the rows counts where all rows of the user were in the order
        of time, and otherwise the order of the items.
        """
        log: dict[str, list[Event]] = defaultdict(list)
        for event in self.rows:
            log[event.user].append(event)
        for user, events in log.items():
            if user in self.unordered:
                events.sort(key=lambda event: event.item)
            events.sort(key=lambda event: event.time or 0)
        return dict(log)

    @cached_property
    def ratings(self) -> dict[tuple[str, str], Rating]:
        """The rating of each pair, by the rule of the setting."""
        of_pair: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.rows:
            of_pair[event.user, event.item].append(event)
        ratings = {}
        for pair, events in of_pair.items():
            events.sort(key=lambda event: event.time or 0)
            policy = self.setting.policy
            time = events[0 if policy == "first" else -1].time
            weights = [self.weight(event) for event in events]
            value = {
                "first": weights[0],
                "last": weights[-1],
                "mean": sum(weights) / len(weights),
                "sum": sum(weights),
            }[policy]
            if self.setting.grades or value > 0:
                ratings[pair] = Rating(value, time)
        return ratings

    @cached_property
    def table(self) -> Table:
        return Table(self.ratings, self.users, self.items)

    def history(self, user: str) -> Scores:
        """Return the items of a user with their values, by their latest times."""
        own = [(item, r) for (who, item), r in self.ratings.items() if who == user]
        own.sort(key=lambda pair: self._latest(user, pair[0]))
        return {item: rating.value for item, rating in own}

    def _latest(self, user: str, item: str) -> int:
        """Return the time of the latest event of a pair that was not returned."""
        return max(
            event.time or 0
            for event in self.log[user]
            if event.item == item
            and (self.setting.grades or self.setting.weight(event) > 0)
        )

    @property
    def sequences(self) -> list[list[tuple[str, float]]]:
        """The visits of each user in the order of time, with weights of mean 1."""
        ratings, weigh = self.ratings, self.weight
        grades = self.setting.grades
        sequences = [
            [
                (event.item, 1.0 if grades else weigh(event))
                for event in events
                if (user, event.item) in ratings and (grades or weigh(event) > 0)
            ]
            for user, events in sorted(self.log.items())
        ]
        weights = [weight for visits in sequences for _, weight in visits]
        mean = np.mean(weights or [1.0])
        return [[(item, weight / mean) for item, weight in s] for s in sequences]


def _unordered_users(rows: Iterable[Event]) -> set[str]:
    latest: dict[str, int] = {}
    unordered = set()
    for event in rows:
        if event.time is None:
            continue
        if event.time < latest.get(event.user, event.time):
            unordered.add(event.user)
        latest[event.user] = event.time
    return unordered


class Table:
    """Ratings as a dense matrix, with the ids in the order of the alphabet."""

    def __init__(
        self,
        ratings: Mapping[tuple[str, str], Rating],
        users: Iterable[str],
        items: Iterable[str],
    ) -> None:
        self.users, self.items = sorted(users), sorted(items)
        self.X = np.zeros((len(self.users), len(self.items)))
        self.mask = np.zeros(self.X.shape, bool)
        row = {user: at for at, user in enumerate(self.users)}
        column = {item: at for at, item in enumerate(self.items)}
        for (user, item), rating in ratings.items():
            self.X[row[user], column[item]] = rating.value
            self.mask[row[user], column[item]] = True

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of ratings of each item."""
        return self.mask.sum(axis=0)


class Popular:
    """Items by their number of ratings, or total weight."""

    def __init__(self, table: Table, setting: Setting) -> None:
        totals = table.counts if setting.grades else table.X.sum(axis=0)
        self.totals = dict(zip(table.items, totals.astype(float), strict=True))

    def scores(self, history: Scores) -> Scores:
        return self.totals


class Ease:
    """Item-item weights by ridge regression, with rows and columns scaled."""

    def __init__(
        self, table: Table, setting: Setting, regularization: float, power: float
    ) -> None:
        values = table.X[table.mask]
        unit = values.mean()
        if setting.scale is not None:
            unit = setting.scale[1]
        X = table.X / unit
        of_users = _power(X.sum(axis=1), -power)
        of_items = _power(X.sum(axis=0), -power)
        penalty = regularization
        for counts in (table.mask.sum(axis=1), table.counts):
            squares = _power(counts, -2 * power)
            penalty *= np.average(squares, weights=counts)
        scaled = of_users[:, None] * X * of_items
        P = np.linalg.inv(scaled.T @ scaled + penalty * np.eye(X.shape[1]))
        B = np.eye(len(P)) - P / np.diag(P)
        self.weights = of_items[:, None] * B / unit
        self.items = table.items

    def scores(self, history: Scores) -> Scores:
        x = np.array([history.get(item, 0.0) for item in self.items])
        return dict(zip(self.items, x @ self.weights, strict=True))


class Next:
    """Regressions from the latest items to the item after them, without neighbours.

    The shares of the regressions are what a search on held-out items has made of them.
    """

    DECAYS = (1.0, 3.0, 8.0)

    def __init__(
        self, shop: Shop, shares: Iterable[float], penalty: float, power: float
    ) -> None:
        table = shop.table
        self.items = table.items
        self.at = {item: place for place, item in enumerate(self.items)}
        self.shares = list(shares)
        self.unit = 0.0 if shop.setting.grades else table.X[table.mask].mean()
        sequences = [
            [(self.at[item], weight) for item, weight in visits]
            for visits in shop.sequences
        ]
        visits = [visit for sequence in sequences for visit in sequence]
        n = len(self.items)
        counts = np.bincount([item for item, _ in visits], minlength=n)
        totals = np.bincount(*zip(*visits, strict=True), minlength=n)
        squares = np.bincount(
            [item for item, _ in visits], [w**2 for _, w in visits], minlength=n
        )
        self.chances = 0.1 * totals / totals.sum()
        D = np.diag(_power(counts, -power))
        self.weights = []
        for decay in self.DECAYS:
            gamma = np.exp(-1 / decay)
            ST, ZZ = np.zeros((n, n)), np.zeros((n, n))
            for sequence in sequences:
                for later, (target, weight) in enumerate(sequence):
                    ST[:, target] += weight * self._source(sequence[:later], gamma)
                z = self._source(sequence, gamma)
                ZZ += np.outer(z, z)
            SS = gamma**2 * (ST + ST.T + np.diag(squares)) - ZZ
            system = D @ SS @ D / (1 - gamma**2) + penalty * np.eye(n)
            self.weights.append(D @ np.linalg.solve(system, D @ ST))
        # One more regression, between the items of whole histories.
        X = table.mask.astype(float)
        lengths, counts = X.sum(axis=1), X.sum(axis=0)
        ridge = 90 * np.cbrt(counts @ counts / counts.sum())
        P = np.linalg.inv(X.T @ X + ridge * np.eye(n))
        self.weights.append(np.eye(n) - P / np.diag(P))
        # Items of similar histories, and the same item as often as items come again.
        scaled = _power(lengths, -0.5)[:, None] * X * _power(counts, -0.5)
        _, s, Vt = np.linalg.svd(scaled, full_matrices=False)
        similar = Vt.T @ np.diag(s) @ Vt
        np.fill_diagonal(similar, 1 - X.sum() / len(visits))
        self.weights.append(similar)

    def _source(self, visits: Iterable[tuple[int, float]], gamma: float) -> Matrix:
        """Return the sum of the items so far; what is far back counts nothing."""
        source = np.zeros(len(self.items))
        reach = np.inf if gamma == 1 else int(np.log(0.01) / np.log(gamma))
        for lag, (item, weight) in enumerate(reversed(list(visits)), start=1):
            if lag <= reach:
                source[item] += weight * gamma**lag
        return source

    def scores(self, history: Scores) -> Scores:
        visits = [
            (self.at[item], value / self.unit if self.unit else 1.0)
            for item, value in history.items()
        ]
        gammas = [*np.exp(-1 / np.array(self.DECAYS)), 1.0, np.exp(-1 / 3)]
        scores = self.chances.copy()
        for gamma, share, B in zip(gammas, self.shares, self.weights, strict=True):
            scores += share * self._source(visits, gamma) @ B
        return dict(zip(self.items, scores, strict=True))


class Baseline:
    """Global mean and damped biases of users and items, solved together."""

    def __init__(self, table: Table, damping: float) -> None:
        rows, columns = np.nonzero(table.mask)
        values = table.X[rows, columns]
        self.mean, self.deviation = values.mean(), values.std()
        n_users, n_items = table.X.shape
        design = np.zeros((len(values), n_users + n_items))
        design[np.arange(len(values)), rows] = 1
        design[np.arange(len(values)), n_users + columns] = 1
        system = design.T @ design + damping * np.eye(n_users + n_items)
        biases = np.linalg.solve(system, design.T @ (values - self.mean))
        self.of_users = dict(zip(table.users, biases[:n_users], strict=True))
        self.of_items = dict(zip(table.items, biases[n_users:], strict=True))


def obscurities(table: Table) -> Scores:
    """Return by how much items with few ratings come later in lists, times a weight."""
    deviation = table.X[table.mask].std() or 1.0
    behind = np.log1p(table.counts.max()) - np.log1p(table.counts)
    return dict(zip(table.items, deviation * behind, strict=True))


@dataclass(frozen=True)
class Biased:
    """Scores of a user as the best fit to the own ratings, with the items as they are.

    The penalty of a bias is ``bias_penalty * n**power``, for n ratings, and likewise of a factor.
    """

    mean: float
    biases: Scores
    obscurity: Scores
    factors: Vectors
    penalty: float
    bias_penalty: float
    power: float

    def with_others(self, vectors: Vectors) -> Biased:
        """Return the fit to other items, or to users, whose biases are the last numbers."""
        biases = {name: float(vector[-1]) for name, vector in vectors.items()}
        factors = {name: vector[:-1] for name, vector in vectors.items()}
        return replace(self, biases=biases, factors=factors)

    def vector(self, history: Scores) -> Matrix:
        """Return the factors and the bias of a user."""
        rated = np.array([self.factors[item] for item in history])
        k = rated.shape[1]
        design = np.column_stack([rated, np.ones(len(history))])
        targets = [x - self.mean - self.biases[item] for item, x in history.items()]
        penalties = np.array([self.penalty] * k + [self.bias_penalty])
        penalties *= len(history) ** self.power
        system = design.T @ design + np.diag(penalties)
        return np.linalg.solve(system, design.T @ np.array(targets))

    def scores(self, history: Scores) -> Scores:
        *vector, bias = self.vector(history)
        return {
            item: self.mean
            + bias
            + own
            + np.dot(vector, self.factors[item])
            - self.obscurity[item]
            for item, own in self.biases.items()
        }


@dataclass(frozen=True)
class Implicit:
    """Scores of a user as the best fit to 1 for the own items and 0 for all."""

    factors: Vectors
    unit: float
    penalty: float
    pair_weight: float

    def with_others(self, vectors: Vectors) -> Implicit:
        """Return the fit to other items, or to users."""
        return replace(self, factors=vectors)

    def vector(self, history: Scores) -> Matrix:
        """Return the factors of a user."""
        every = np.array(list(self.factors.values()))
        n, k = every.shape
        system = self.pair_weight * every.T @ every
        right = np.zeros(k)
        for item, value in history.items():
            vector, weight = self.factors[item], value / self.unit
            system += weight * np.outer(vector, vector)
            right += weight * vector
        total = sum(history.values()) / self.unit + self.pair_weight * n
        system += self.penalty * total * np.eye(k)
        return np.linalg.solve(system, right)

    def scores(self, history: Scores) -> Scores:
        own = self.vector(history)
        return {item: float(vector @ own) for item, vector in self.factors.items()}


def folded_items(
    before: Shop,
    after: Shop,
    solver: Biased | Implicit,
    users: Vectors,
    items: Vectors,
) -> Vectors:
    """Return the items after an update without a fit: changed users first, then their items."""
    pairs = {pair for pair, _ in before.ratings.items() ^ after.ratings.items()}
    new_items = after.items - before.items
    changed_items = new_items | {item for _, item in pairs} & after.items
    new_users = after.users - before.users
    changed_users = new_users | {user for user, _ in pairs} & after.users
    nothing = np.zeros_like(next(iter(items.values())))
    items = {item: items.get(item, nothing) for item in after.items}
    users = {user: users.get(user, nothing) for user in after.users}
    of_items = solver.with_others(items)
    for user in changed_users:
        users[user] = of_items.vector(after.history(user))
    if isinstance(solver, Implicit):
        # Users of new items only are the mean user at first.
        mean = np.mean(list(users.values()), axis=0)
        for user in changed_users:
            if not users[user].any():
                users[user] = mean
    of_users = solver.with_others(users)
    for item in changed_items:
        raters = {
            u: rating.value for (u, i), rating in after.ratings.items() if i == item
        }
        items[item] = of_users.vector(raters)
    return items


@dataclass(frozen=True)
class Parts:
    """Ratings for training and for the test of a split."""

    train: dict[tuple[str, str], Rating]
    test: dict[tuple[str, str], Rating]

    @classmethod
    def of(cls, shop: Shop, held_out: Iterable[Event]) -> Parts:
        """Hold out some events, and test the pairs that training does not have."""
        tested = set(held_out)
        rows = [
            tuple(e for e in shop.rows if (e in tested) == t) for t in (False, True)
        ]
        train = replace(shop, rows=rows[0]).ratings
        # What is held out counts the same at any age.
        setting = replace(shop.setting, half_life=None)
        test = replace(shop, rows=rows[1], setting=setting).ratings
        return cls(train, {pair: r for pair, r in test.items() if pair not in train})

    @classmethod
    def by_time(cls, shop: Shop, cut: int) -> Parts:
        """Hold out the events since a time."""
        return cls.of(shop, [event for event in shop.rows if (event.time or 0) >= cut])

    @classmethod
    def leave_last(cls, shop: Shop) -> Parts:
        """Hold out each user's last new item, with all that came after it."""
        held_out: list[Event] = []
        for events in shop.log.values():
            seen: set[str] = set()
            last = 0
            for at, event in enumerate(events):
                if event.item not in seen:
                    last = at
                seen.add(event.item)
            if last:
                held_out += events[last:]
        return cls.of(shop, held_out)


def _power(sums: NDArray[np.generic], exponent: float) -> Matrix:
    return np.where(sums > 0, np.where(sums > 0, sums, 1.0) ** exponent, 0.0)


def listed(
    scores: Scores,
    history: Iterable[str],
    *,
    include_seen: bool = False,
    items: Iterable[str] | None = None,
    block: Iterable[str] = (),
) -> Scores:
    """Return the scores of all items that a list may have."""
    allowed = set(scores) - set(block)
    if items is not None:
        allowed &= set(items)
    if not include_seen:
        allowed -= set(history)
    return {item: scores[item] for item in allowed}


def disagreement(
    got: list[tuple[str, float]], candidates: Scores, n: int, tol: float = 1e-4
) -> str | None:
    """Return how a list differs from the n best candidates, up to ties, or None."""
    if len({item for item, _ in got}) < len(got):
        return f"an item is listed twice: {got}"
    strange = [item for item, _ in got if item not in candidates]
    if strange:
        return f"{strange} may not be listed; these may: {sorted(candidates)}"
    if len(got) != min(n, len(candidates)):
        return f"{len(got)} items of {len(candidates)} candidates, with n = {n}"
    if not candidates:
        return None
    best = sorted(candidates.values(), reverse=True)[:n]
    # Scores of about 0 have the rounding of terms of about 1.
    margin = tol * max(0.02, *map(abs, candidates.values()))
    for (item, score), expected in zip(got, best, strict=True):
        if abs(score - candidates[item]) > margin or abs(score - expected) > margin:
            return f"{item} has {score}, not {candidates[item]}; there comes {expected}"
    return None
