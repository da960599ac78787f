"""Automatic choice of a model: candidates that suit the data, compared on held-out ratings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, get_args

import numpy as np

from recsys.accuracy import rmse
from recsys.data.implicit import as_implicit, feedback_of
from recsys.data.ratings import Ratings
from recsys.data.times import duration
from recsys.effort import Schedule
from recsys.messages import counted
from recsys.models.abilities import FoldsInUsers
from recsys.models.base import Model, Progress, predicted_ratings
from recsys.models.histories import Histories
from recsys.models.holdout import (
    TOP,
    HeldOut,
    Lists,
    Size,
    growing_blends,
    ndcg_of,
)
from recsys.models.linear_filter import default_factors
from recsys.models.parameters import (
    model,
    parameter,
    random_state_parameter,
    threads_parameter,
)
from recsys.models.registry import model_class, seeded_model
from recsys.provenance import FitRequest

CANDIDATES = "als", "bayes", "spectral", "ials", "ease", "sparse-ease", "next"
"""Names of the models that may be candidates, of ratings and of interactions."""

Purpose = Literal["later", "next"]
"""Use of the lists: what comes at any later time, or what comes next."""

_ENOUGH = 2_000  # minimum number of ratings for a comparison
_ENOUGH_USERS = 100  # minimum number of users with a last item for one
_FEW_ITEMS = 2_000  # maximum number of items for `ease`, whose fit is cubic in it
# Maximum numbers of ratings, to bound fit times.
_MOST_FOR_LINKED = 20_000_000
_MOST_FOR_BAYES = 2_000_000
# Minimum relative gain for a slower model, or for one more model in a blend.
_GAIN = 0.005
# The same above this many interactions, where fits are slow.
_GAIN_OF_MANY = 0.01
_MANY = 3_000_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """Name and parameters of a model; `str()` returns its name in messages."""

    model: str
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        flags = [name for name, value in self.params.items() if value is True]
        return " ".join([self.model, *flags])

    def unfitted(self, random_state: int, threads: int | None) -> Model:
        """Return the unfitted model, with the seed and threads if it has these parameters."""
        return seeded_model(
            self.model,
            random_state,
            threads,
            **self.params,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """Candidate models for the data, and the reason for them.

    `ratings` are converted to implicit feedback if their values are not grades. If `purpose` is
    "next", lists are judged by the last item of each user. `str()` returns the candidates and the
    reason.
    """

    candidates: tuple[Candidate, ...]
    ratings: Ratings
    reason: str
    purpose: Purpose = "later"

    @property
    def is_open(self) -> bool:
        """Return whether there are several candidates to compare."""
        return len(self.candidates) > 1

    def __str__(self) -> str:
        texts = [str(candidate) for candidate in self.candidates]
        factors = self.candidates[0].params.get("factors")
        if factors and not self.is_open:
            texts.append(counted(factors, "factor"))
        return f"{', '.join(texts)}: {self.reason}"

    def only(self, numbers: Sequence[int]) -> Choice:
        """Return the choice with some of the candidates."""
        candidates = tuple(self.candidates[number] for number in numbers)
        return replace(self, candidates=candidates)

    def without(self, numbers: Sequence[int]) -> str:
        """Return the names of the other candidates, between commas."""
        others = self.only(sorted({*range(len(self.candidates))} - {*numbers}))
        return ", ".join(map(str, others.candidates))

    def given(self, params: Mapping[str, Mapping[str, Any]]) -> Choice:
        """Return the choice with the given parameters of each model set.

        Only candidates that have all given parameters remain. If there are none, all candidates
        remain, each with the parameters that it has.
        """
        requested = {c.model: dict(params.get(c.model, {})) for c in self.candidates}
        names = set().union(*requested.values())
        complete = [c for c in self.candidates if requested[c.model].keys() >= names]
        candidates: list[Candidate] = []
        for candidate in complete or self.candidates:
            values = requested[candidate.model]
            if candidate.params.get("linked") and values.get("nonnegative"):
                continue  # a model has one or the other
            with_values = Candidate(candidate.model, candidate.params | values)
            if with_values not in candidates:
                candidates.append(with_values)
        return replace(self, candidates=tuple(candidates))


class _Verdict(NamedTuple):
    """Result of a comparison: the winner, the models of the last trial, the report, omissions."""

    candidate: Candidate
    trials: list[Model]
    metric: str
    results: list[str]
    verdict: str
    omitted: str


def choose_model(ratings: Ratings, purpose: Purpose = "later") -> Choice:
    """Choose candidate models by the kind and size of the data, without fitting any.

    ===========================================  ==================================================
    data                                         candidates
    ===========================================  ==================================================
    no ratings, or equal ratings (more than      implicit feedback: `spectral`, `ials`, and `ease`
    one)                                         (`sparse-ease` for more than 2,000 items), or a
                                                 blend of them
    counts or amounts (see                       the same; the amounts are not used
    `recsys.data.feedback.judge`)
    ratings of different values                  `als`, `als` with `linked` for up to 20 million
                                                 ratings, and `bayes` for up to 2 million
    ===========================================  ==================================================

    If the purpose is what comes "next", ratings are interactions, and `next` is a candidate, too.
    This needs times.

    Fewer than 2,000 ratings are too few for a comparison. The only candidate is then `spectral` or
    `als`, with at most as many factors as there are users and items.

    Examples
    --------
    >>> import polars as pl
    >>> likes = pl.DataFrame({"user": [1, 1, 2], "item": [7, 8, 7], "rating": [1, 1, 1]})
    >>> choice = choose_model(Ratings.from_frame(likes))
    >>> str(choice), choice.ratings.implicit
    ('spectral, 1 factor: all ratings are 1, which makes them implicit feedback', True)
    """
    if purpose == "next":
        return _choose_for_next(ratings)
    # Those who have no ratings, but a row in a table, do not count: a refit adds them later.
    n_users = int(np.count_nonzero(ratings.counts("user")))
    n_items = int(np.count_nonzero(ratings.counts("item")))
    is_small = ratings.n_ratings < _ENOUGH
    if feedback_of(ratings).kind == "grades" and not ratings.implicit:
        low, high = ratings.value_range()
        reason = f"the ratings are between {low:g} and {high:g}"
        factors = min(model_class("als")().get_params()["factors"], n_users, n_items)
        candidates = [Candidate("als", {"factors": factors} if is_small else {})]
        if not is_small and ratings.n_ratings <= _MOST_FOR_LINKED:
            candidates.append(Candidate("als", {"linked": True}))
        if not is_small and ratings.n_ratings <= _MOST_FOR_BAYES:
            candidates.append(Candidate("bayes"))
        return Choice(tuple(candidates), ratings, reason)
    interactions, reason = _interactions(ratings)
    if is_small:
        factors = default_factors(max(1, n_users), max(1, n_items), ratings.n_ratings)
        return Choice(
            (Candidate("spectral", {"factors": factors}),), interactions, reason
        )
    return Choice(_list_models(n_items), interactions, reason)


def _interactions(ratings: Ratings) -> tuple[Ratings, str]:
    """Return ratings as interactions, and the reason for it."""
    feedback = feedback_of(ratings)
    if not ratings.implicit or feedback.kind == "counts":
        return as_implicit(ratings), feedback.reason
    # A matrix may have counts, which are weights even if all are 1.
    if ratings.value_range() != (1, 1):
        return ratings, "there are no ratings, only weighted interactions"
    return ratings, "there are no ratings, only interactions"


def _list_models(n_items: int) -> tuple[Candidate, ...]:
    """Return the candidates for lists of items from interactions."""
    ease = "ease" if n_items <= _FEW_ITEMS else "sparse-ease"
    return tuple(map(Candidate, ("spectral", "ials", ease)))


def _choose_for_next(ratings: Ratings) -> Choice:
    """Choose candidates for what comes next, or as for later if there is no order."""
    seconds = ratings.seconds
    if seconds is None or not len(seconds) or seconds.min() == seconds.max():
        choice = choose_model(ratings)
        times = "no timestamps" if seconds is None else "no different timestamps"
        reason = (
            f"{choice.reason}, and {times}, so next is not tried: judged as for later"
        )
        return replace(choice, reason=reason)
    interactions, reason = _interactions(ratings)
    if feedback_of(ratings).kind == "grades" and not ratings.implicit:
        low, high = ratings.value_range()
        reason = f"ratings between {low:g} and {high:g} count as interactions"
    n_judges = int(np.count_nonzero(interactions.counts("user") > 1))
    if n_judges < _ENOUGH_USERS:
        few = counted(n_judges, "user")
        reason += (
            f", and {few} with two items are too few to compare models (--for next)"
        )
        return Choice((Candidate("next"),), interactions, reason, "next")
    reason += "; for what comes next, judged by the last item of each user"
    n_items = int(np.count_nonzero(ratings.counts("item")))
    candidates = (*_list_models(n_items), Candidate("next"))
    return Choice(candidates, interactions, reason, "next")


@model
class Auto(Model):
    """Compare models on held-out ratings, and fit the best one or a blend.

    The candidates depend only on the kind and size of the data (see `choose_model`), not on fit
    times, so the same seed gives the same choice. They are fitted to nine tenths of the ratings.
    Above one million ratings, or three million interactions, only some users are used. Up to
    100,000 interactions, the candidates are fitted to four fifths instead, on three splits.

    Models of ratings are compared by the RMSE on held-out ratings. Models of interactions are
    compared by NDCG@20, and further models are added to the best one in a blend. Each must raise
    the NDCG by more than its standard error and by at least 0.5% (1% above three million
    interactions), measured on users that the weights were not chosen on. The winner is fitted to
    all data.

    With ``purpose="next"``, `next` is a candidate, too, and lists are judged by the last new item
    of each user instead. Without times, `findings` say that this is not possible.

    With a `budget`, candidates are compared on a sample of the users, and the slowest ones are left
    out, if they would take too long by the estimates of `recsys.effort`. Searches and sweeps end in
    time; `findings` name what was left out. The choice then depends on the speed of the machine.

    `recsys.Recommender` keeps the winner as its model: it is saved, explained and updated as such.

    Attributes
    ----------
    chosen : Model
        The fitted winner.
    candidate : Candidate
        Name and parameters of the winner.
    ratings : Ratings
        The training data of the winner: implicit feedback if the ratings are not grades.
    findings : list of str
        The candidates, their results and the choice; empty without a comparison.
    """

    name = "auto"
    summary = "The best of several models for the data, compared on held-out ratings."

    purpose: str = parameter(
        "later",
        "Use of the lists: items at any later time, or the next one.",
        choices=get_args(Purpose),
    )
    budget: float | None = parameter(
        None,
        "Seconds for the comparison and the fit, or a text such as 60s, 5min or 1h.",
    )
    random_state: int = random_state_parameter()
    threads: int | None = threads_parameter()

    uses_features = True
    _choice: ClassVar[Choice | None] = None
    _blends: ClassVar[bool] = True
    _candidate_params: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    _is_compared: ClassVar[bool] = True
    _is_given: ClassVar[bool] = False  # whether `among` has set the candidates

    def __post_init__(self) -> None:
        self.set_params(budget=self.budget)
        super().__post_init__()

    def set_params(self, **params: Any) -> Self:
        """Set some of the parameters, for the next `fit`; `budget` may be a text.

        Raises
        ------
        DataError
            If a parameter does not exist, or a value has another type or is out of range.
        """
        if params.get("budget") is not None:
            params["budget"] = duration(params["budget"], "budget")
        return super().set_params(**params)

    @property
    def _request(self) -> FitRequest:
        """The request for a choice, with the parameters of the candidates."""
        candidates = {
            name: dict(values) for name, values in self._candidate_params.items()
        }
        return replace(
            super()._request, candidates=candidates, is_compared=self._is_compared
        )

    def _with_request(self, request: FitRequest) -> Self:
        return self.requested(request.candidates, is_compared=request.is_compared)

    def requested(
        self, candidates: Mapping[str, Mapping[str, Any]], *, is_compared: bool = True
    ) -> Self:
        """Set parameters of the candidates, by model, and whether the candidates are compared."""
        vars(self).update(_candidate_params=candidates, _is_compared=is_compared)
        return self

    def choose(self, ratings: Ratings) -> Choice:
        """Return the candidates that suit the ratings, with the requested parameters."""
        purpose: Purpose = "next" if self.purpose == "next" else "later"
        choice = choose_model(ratings, purpose).given(self._candidate_params)
        if self._is_compared:
            return choice
        return replace(choice, candidates=choice.candidates[:1])

    def _plan(self, ratings: Ratings) -> Ratings:
        if self._is_given:
            return ratings
        choice = self.choose(ratings)
        vars(self)["_choice"] = choice
        return choice.ratings

    @property
    def _takes_features(self) -> bool:
        """Return whether some candidate uses features."""
        candidates = self.candidate_models()
        return not candidates or any(model.uses_features for model in candidates)

    def candidate_models(self) -> list[Model]:
        """Return the candidates that `among` has set, unfitted."""
        return [] if self._choice is None else self._unfitted(self._choice)

    def _unfitted(self, choice: Choice) -> list[Model]:
        seed, threads = self.random_state, self.threads
        return [candidate.unfitted(seed, threads) for candidate in choice.candidates]

    def among(self, choice: Choice, *, blends: bool = True) -> Self:
        """Set the candidates, and whether blends of them are tried."""
        vars(self).update(
            _choice=choice,
            _blends=blends,
            _is_given=True,
        )
        return self

    def report_to(self, report: Callable[[str], None]) -> Self:
        """Set a callback for progress messages."""
        vars(self)["_report"] = report
        return self

    def _report(self, message: str) -> None:
        """Report progress; `report_to` replaces this method."""

    def _schedule(self, choice: Choice, ratings: Ratings) -> Schedule:
        """Return the estimates of the times of the candidates.

        They are compared on the largest sample that leaves time for most of them.
        """
        full = Size.of(ratings)
        if choice.purpose == "next":
            full = full._replace(n_folds=1)
        schedules = []
        for size in full.smaller(ratings):
            schedule = Schedule.of(
                self._unfitted(choice),
                ratings,
                size=size,
                budget=self.budget,
                threads=self.threads,
            )
            schedules.append(schedule)
            if len(schedule.affordable()) == len(choice.candidates):
                break
        return max(schedules, key=lambda schedule: len(schedule.affordable()))

    def _unused(self, schedule: Schedule, ratings: Ratings) -> str:
        """Return which ratings the budget leaves out of the comparison."""
        most = schedule.size.most
        if most >= Size.of(ratings).most or len(schedule.affordable()) < 2:
            return ""
        noun = "interactions" if ratings.implicit else "ratings"
        return f"{noun} above {most:,} in the comparison"

    def announcement(self, ratings: Ratings) -> str:
        """Return a sentence on how long the fit will take, and what is left out for the budget."""
        choice = self._choice or self.choose(ratings)
        schedule = self._schedule(choice, ratings)
        affordable = schedule.affordable()
        text = f"expected to end in {max(1.0, schedule.seconds(affordable)):.0f} s"
        omitted = [choice.without(affordable), self._unused(schedule, ratings)]
        names = ", ".join(filter(None, omitted))
        return f"{text}, without {names}" if names else text

    def compare(self, ratings: Ratings) -> Candidate:
        """Compare the candidates on held-out ratings, and set `findings` to the results."""
        choice = self._choice
        if choice is None:
            choice = self.choose(ratings)
            ratings = choice.ratings
        self.ratings = ratings
        self.findings: list[str] = []
        self._compared: list[Model] = []
        if ratings.n_items > _FEW_ITEMS:  # may include items without ratings
            large = {"ease": "sparse-ease"}
            candidates = tuple(
                replace(candidate, model=large.get(candidate.model, candidate.model))
                for candidate in choice.candidates
            )
            choice = replace(choice, candidates=candidates)
        self._clock = self._schedule(choice, ratings)
        affordable = self._clock.affordable()
        omitted = choice.without(affordable)
        if omitted:
            choice = choice.only(affordable)
            self._clock = self._schedule(choice, ratings)
        unused = self._unused(self._clock, ratings)
        size = self._clock.size
        self.candidate = choice.candidates[0]
        folds = []
        if choice.is_open and choice.purpose == "next":
            folds = [HeldOut.last(ratings, self.random_state, size.most)]
        elif choice.is_open:
            folds = HeldOut.folds(ratings, self.random_state, size)
        if folds:
            compare = self._by_lists if ratings.implicit else self._by_error
            result = compare(choice, folds)
            self.candidate, self._compared = result.candidate, result.trials
            held_out = sum(fold.test.n_ratings for fold in folds)
            noun = "held-out interaction" if ratings.implicit else "held-out rating"
            judges = counted(held_out, noun)
            if len(folds) > 1:
                judges += f" of {len(folds)} splits"
            if result.results:
                self.findings = [
                    f"compared {choice}".replace("; ", ", "),
                    f"{result.metric} on {judges}: {', '.join(result.results)}",
                    f"chose {result.verdict}",
                ]
            omitted = ", ".join(filter(None, [omitted, result.omitted, unused]))
        if omitted:
            if not self.findings:
                self.findings = [f"chose {self.candidate} without a comparison"]
            budget = f"the budget of {self.budget:g} s"
            self.findings.append(f"left out for {budget}: {omitted}")
        return self.candidate

    def _fit(self, ratings: Ratings, progress: Progress) -> None:
        winner = self.compare(ratings)
        if not self._is_given:
            vars(self).pop("_choice", None)  # which is that of these ratings
        self._report(f"fitting {winner}")
        fitted = winner.unfitted(self.random_state, self.threads)
        progress.trials = {trial.name: trial for trial in self._compared}
        progress.deadline = self._clock.deadline
        self.chosen = fitted._fit_checked(self.ratings, progress)

    def _trials(
        self, choice: Choice, folds: Sequence[HeldOut]
    ) -> Iterator[tuple[HeldOut, list[Model]]]:
        """Yield each fold with the candidates fitted to its training data."""
        total = len(choice.candidates) * len(folds)

        def begin(fold: int, number: int) -> Progress | None:
            if not self._clock.begins(fold, number):
                return None
            place = fold * len(choice.candidates) + number + 1
            candidate = choice.candidates[number]
            self._report(f"comparing {candidate} ({place} of {total})")
            return Progress(deadline=self._clock.trial_deadline)

        return HeldOut.trials(folds, self._unfitted(choice), begin)

    def _by_error(self, choice: Choice, folds: Sequence[HeldOut]) -> _Verdict:
        """Choose the model of ratings with the lowest RMSE."""
        fold, models = next(self._trials(choice, folds))
        omitted = choice.without(self._clock.compared)
        choice = choice.only(self._clock.compared)
        actual = fold.test.values
        errors = [rmse(predicted_ratings(trial, fold.test), actual) for trial in models]
        best = 0
        for number, error in enumerate(errors):
            if error < errors[best] * (1 - _GAIN):
                best = number
        chosen = choice.candidates[best]
        verdict = str(chosen)
        if choice.is_open:
            gain = min(errors[:best] + errors[best + 1 :]) / errors[best] - 1
            comparison = "better" if gain >= 0 else "worse"
            verdict += f", {abs(gain):.1%} {comparison} than the next"
        results = _results(choice, errors)
        return _Verdict(chosen, models, "RMSE", results, verdict, omitted)

    def _by_lists(self, choice: Choice, folds: Sequence[HeldOut]) -> _Verdict:
        """Choose the model of interactions, or blend, with the highest NDCG."""
        lists: list[Lists] = []
        trials: list[Model] = []
        for fold, trials in self._trials(choice, folds):
            if len(trials) > 1:
                lists.append(fold.lists(trials))
        compared = self._clock.compared
        omitted = [choice.without(compared)]
        choice = choice.only(compared)
        metric = f"NDCG@{TOP}"
        if not lists:  # there was no time for a second model
            (only,) = choice.candidates
            return _Verdict(only, trials, metric, [], str(only), omitted[0])
        heights = [ndcg_of(lists, unit) for unit in np.eye(len(trials))]
        means = [float(of_model.mean()) for of_model in heights]
        results = _results(choice, means)
        best = int(np.argmax(means))
        chosen, height = choice.candidates[best], heights[best]
        verdict = str(chosen)
        if choice.is_open:
            next_best = max(means[:best] + means[best + 1 :])
            gain = means[best] / max(next_best, 1e-9) - 1
            verdict += f", {gain:.1%} better than the next"
        least = _GAIN_OF_MANY if self.ratings.n_ratings > _MANY else _GAIN
        blends = self._blends and not any(unit.params for unit in choice.candidates)
        for members, weights, higher in growing_blends(lists, best) if blends else ():
            names = [choice.candidates[member].model for member in members]
            shares = [f"{weight:.2f}" for weight in weights]
            pairs = zip(shares, names, strict=True)
            blend = " + ".join(f"{share} {name}" for share, name in pairs)
            if not weights.all():
                break
            results.append(f"{blend} {higher.mean():.4f}")
            difference = higher - height
            error = difference.std() / np.sqrt(len(height))
            if difference.mean() <= max(least * height.mean(), error):
                break
            fits = [self._clock.final[compared[member]] for member in members]
            if sum(fits) > self._clock.left:
                omitted.append(blend)
                break
            height = higher
            gain = height.mean() / means[best] - 1
            verdict = f"{blend}, {gain:.1%} better than {choice.candidates[best]}"
            params = {"members": ",".join(names), "weights": ",".join(shares)}
            chosen = Candidate("blend", params)
        return _Verdict(
            chosen,
            trials,
            metric,
            results,
            verdict,
            ", ".join(filter(None, omitted)),
        )

    def _chosen(self, ratings: Ratings) -> tuple[Model, Ratings, str | None]:
        return self.chosen, self.ratings, "; ".join(self.findings) or None

    def with_users(self, histories: Histories) -> Model:
        """Return the winner with these users, before a fit a promise for any winner."""
        folded: Model = cast(FoldsInUsers, self.chosen).with_users(histories)
        return folded


def _results(choice: Choice, figures: Sequence[float]) -> list[str]:
    """Return the candidates with the figure of each."""
    pairs = zip(choice.candidates, figures, strict=True)
    return [f"{candidate} {figure:.4f}" for candidate, figure in pairs]
