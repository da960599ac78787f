"""Where to look next: at random, over a grid, or where the trials so far point to (TPE).

A strategy is a function of the trials so far and the seed alone, so a study that was interrupted
goes on as if it had not been.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from recsys.errors import DataError
from recsys.models.ranges import Range

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

__all__ = ["SAMPLERS", "Point", "Ranges", "Strategy", "Trial", "make_strategy"]

Point = dict[str, float | None]
"""Values of parameters; None, which leaves a choice to the model, may be a default."""

Ranges = Mapping[str, Range]
State = Literal["complete", "pruned"]

SAMPLERS = ("tpe", "random", "grid")


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of parameters, and what came of it.

    Attributes
    ----------
    number : int
        From 0; the first one is the model's defaults.
    parameters : dict
        The values of the parameters that are tuned.
    state : {"complete", "pruned"}
        A pruned trial was given up, since it fell behind the others.
    value : float or None
        The metric on the validation ratings; None if the trial was pruned.
    sweeps : int or None
        The sweep that predicted the validation ratings best, if the model keeps that one.
    curve : tuple of float
        RMSE on the validation ratings after each sweep, where the model tells; else the metric,
        of at most 500 validation users, after the 2nd, 4th, 8th, ... sweep, where the model can
        be asked between sweeps.
    seconds : float
    """

    number: int
    parameters: Point
    state: State
    value: float | None
    sweeps: int | None
    curve: tuple[float, ...]
    seconds: float


Strategy = Callable[[Sequence[Trial]], Point | None]
"""Given the trials so far, the next point; None if all have been tried."""


def make_strategy(name: str, ranges: Ranges, *, trials: int, minimise: bool, seed: int) -> Strategy:
    """Return the strategy called `name`.

    Parameters
    ----------
    name : {"tpe", "random", "grid"}
        TPE is a tree-structured Parzen estimator, by optuna. The grid has as many values of each
        parameter as can be combined in `trials` trials, in random order.
    ranges : mapping of str to Range
    trials : int
    minimise : bool
        Whether smaller values are better.
    seed : int

    Raises
    ------
    DataError
        If there is no such strategy.
    ImportError
        If optuna is needed and not installed.

    References
    ----------
    Bergstra, Bardenet, Bengio and Kégl (2011), "Algorithms for hyper-parameter optimization",
    section 4. Bergstra and Bengio (2012), "Random search for hyper-parameter optimization".
    """
    if name == "random":
        return lambda done: _random(ranges, _generator(seed, done))
    if name == "grid":
        cells = _cells(ranges, trials - 1, seed)
        return lambda done: _untried(cells, done)
    if name == "tpe":
        _require_optuna()
        return lambda done: _tpe(ranges, done, minimise, seed)
    raise DataError(f"sampler must be one of {', '.join(SAMPLERS)}; got {name!r}.")


def _generator(seed: int, done: Sequence[Trial]) -> np.random.Generator:
    return np.random.default_rng([seed, len(done)])


def _random(ranges: Ranges, rng: np.random.Generator) -> Point:
    return {name: each.at(rng.random()) for name, each in ranges.items()}


def _cells(ranges: Ranges, most: int, seed: int) -> list[Point]:
    """Return the grid in random order, so that an early end leaves no corner out."""
    n = max(2, math.floor(most ** (1 / len(ranges)) + 1e-9)) if most > 0 else 1
    axes = [each.grid(n) for each in ranges.values()]
    cells = [dict(zip(ranges, values, strict=True)) for values in itertools.product(*axes)]
    return [cells[i] for i in np.random.default_rng(seed).permutation(len(cells))]


def _untried(cells: Sequence[Point], done: Sequence[Trial]) -> Point | None:
    tried = [trial.parameters for trial in done]
    return next((cell for cell in cells if cell not in tried), None)


def _require_optuna() -> None:
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise ImportError(
            "The sampler 'tpe' needs optuna; install it with pip install lowrank-recsys[tune], "
            "or use the sampler 'random' or 'grid'."
        )


def _tpe(ranges: Ranges, done: Sequence[Trial], minimise: bool, seed: int) -> Point:
    """Ask a fresh study that has been told of all trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {name: _distribution(each) for name, each in ranges.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna calls the joint model of parameters experimental
        own_seed = int(_generator(seed, done).integers(2**32))
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=own_seed, multivariate=True),
            direction="minimize" if minimise else "maximize",
        )
        # Trials outside the ranges, as the defaults may be, tell nothing within them.
        within = [t for t in done if all(t.parameters[name] in ranges[name] for name in ranges)]
        study.add_trials([_frozen(trial, distributions) for trial in within])
        found = study.ask(distributions).params
    return {name: each.rounded(found[name]) for name, each in ranges.items()}


def _distribution(each: Range) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if each.integer:
        return IntDistribution(int(each.low), int(each.high), log=each.log)
    return FloatDistribution(each.low, each.high, log=each.log)


def _frozen(trial: Trial, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    known: dict[str, Any] = {"params": trial.parameters, "distributions": distributions}
    if trial.state == "complete":
        return create_trial(value=trial.value, **known)
    curve = dict(enumerate(trial.curve))
    return create_trial(state=TrialState.PRUNED, intermediate_values=curve, **known)
