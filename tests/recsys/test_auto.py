"""The choice of a model by the data, and counts in place of ratings."""

import re

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from recsys import effort
from recsys.auto import Auto, Candidate, Choice, choose_model
from recsys.cli.main import cli
from recsys.data.feedback import judge_values
from recsys.data.implicit import as_implicit
from recsys.data.ratings import Ratings, has_items, has_ratings, restricted
from recsys.errors import DataError
from recsys.features.selection import with_features
from recsys.models import ials
from recsys.models.holdout import HeldOut
from recsys.models.item_item import weight_unit
from recsys.models.registry import make_model
from recsys.recommender import Recommender

PLAYS = np.round(np.exp(np.random.default_rng(0).normal(2, 1.3, 2000))).clip(1)


def explicit(shape=(50, 40)):
    return Ratings.from_matrix(1.0 + np.arange(np.prod(shape)).reshape(shape) % 5)


def names_of(choice):
    return [str(each) for each in choice.candidates]


def test_few_ratings_get_als_with_its_defaults():
    ratings = explicit((50, 33))
    choice = choose_model(ratings)
    assert choice.ratings is ratings
    (only,) = choice.candidates
    assert only.unfitted(0, None).get_params() == make_model("als").get_params()
    assert str(choice) == "als, 32 factors: the ratings are between 1 and 5"


def test_has_at_most_as_many_factors_as_users_or_items():
    assert choose_model(explicit((50, 7))).candidates[0].params == {"factors": 7}
    assert choose_model(explicit((3, 50))).candidates[0].params == {"factors": 3}


def test_items_without_ratings_do_not_count():
    rated = explicit((50, 20)).to_frame()
    films = pl.DataFrame({"item": range(2500), "genre": ["drama", "war"] * 1250})
    widened = with_features(Ratings.from_frame(rated, item_table=films), unrated=True)
    assert widened.n_items == 2500
    for ratings in (widened, as_implicit(widened)):
        fewer = restricted(ratings, has_ratings(ratings), has_items(ratings))
        of_all, of_rated = choose_model(ratings), choose_model(fewer)
        assert names_of(of_all) == names_of(of_rated)
        assert of_all.candidates[0].params == of_rated.candidates[0].params


def test_few_interactions_get_spectral_with_its_defaults():
    ratings = Ratings.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 1]}))
    choice = choose_model(ratings)
    assert choice.ratings is ratings
    assert str(choice).startswith("spectral, 1 factor: there are no ratings")
    rng = np.random.default_rng(0)
    table = np.where(rng.random((80, 64)) < 0.2, 1.0, np.nan)
    ratings = Ratings.from_matrix(table, implicit=True)
    (only,) = choose_model(ratings).candidates
    np.testing.assert_array_equal(
        only.unfitted(0, None).fit(ratings).item_factors,
        make_model("spectral").fit(ratings).item_factors,
    )


def test_constant_ratings_are_interactions():
    choice = choose_model(Ratings.from_matrix(np.full((3, 2), 5.0)))
    assert names_of(choice) == ["spectral"]
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert choice.reason == "all ratings are 5, which makes them implicit feedback"


def test_a_single_rating_is_a_rating():
    assert names_of(choose_model(Ratings.from_matrix(np.array([[4.0]])))) == ["als"]


def test_counts_are_interactions():
    plays = np.array([[1.0, 3, np.nan], [212, 7, 1], [2, np.nan, 40]])
    choice = choose_model(Ratings.from_matrix(plays))
    assert names_of(choice) == ["spectral"]
    assert choice.ratings.implicit
    np.testing.assert_array_equal(choice.ratings.values, 1)
    assert (
        choice.reason
        == "the ratings look like counts or amounts, from 1 to 212: implicit feedback"
    )


def test_the_candidates_follow_from_kind_and_size():
    ratings = explicit((60, 50))
    assert names_of(choose_model(ratings)) == ["als", "als linked", "bayes"]
    likes = as_implicit(ratings)
    assert names_of(choose_model(likes)) == ["spectral", "ials", "ease"]
    wide = as_implicit(explicit((10, 2500)))
    assert names_of(choose_model(wide)) == ["spectral", "ials", "sparse-ease"]


def test_given_parameters_narrow_the_choice():
    choice = choose_model(explicit((60, 50)))

    def given(als, bayes):
        return names_of(choice.given({"als": als, "bayes": bayes}))

    assert given({}, {}) == ["als", "als linked", "bayes"]
    assert given({"factors": 3}, {"factors": 3}) == ["als", "als linked", "bayes"]
    assert given({"tol": 0.1}, {}) == ["als", "als linked"]
    assert given({"linked": True}, {}) == ["als linked"]
    assert given({"nonnegative": True}, {}) == ["als nonnegative"]
    assert given({}, {"samples": 4}) == ["bayes"]


def tastes(n_users=200, n_items=60, share=0.5):
    """Interactions of users of three tastes."""
    rng = np.random.default_rng(0)
    same = np.arange(n_users)[:, None] % 3 == np.arange(n_items) % 3
    chance = np.where(same, share, 0.1) * np.linspace(1, 0.4, n_items)
    return Ratings.from_matrix(
        np.where(rng.random((n_users, n_items)) < chance, 1.0, np.nan), implicit=True
    )


def test_auto_fits_the_best_to_everything_and_says_what_it_compared(tmp_path):
    ratings = tastes()
    recommender = Recommender("auto").fit(ratings)
    assert recommender.model.name in ("spectral", "ials", "ease", "blend")
    compared, results, verdict = recommender.training["choice"].split("; ")
    assert (
        compared
        == "compared spectral, ials, ease: there are no ratings, only interactions"
    )
    assert "NDCG@20 on " in results
    assert "ease 0." in results
    assert verdict.startswith("chose ")
    assert "better than" in verdict
    again = Recommender("auto").fit(ratings)
    assert again.training["choice"] == recommender.training["choice"]
    assert again.recommend().equals(recommender.recommend())
    recommender.save(tmp_path / "model")
    assert Recommender.load(tmp_path / "model").training == recommender.training


def test_the_winner_is_the_one_with_the_best_held_out_lists():
    ratings = tastes()
    poor = Candidate("random"), Candidate("popular"), Candidate("ease")
    auto = Auto().among(Choice(poor, ratings, "a test"), blends=False)
    assert auto.compare(ratings) == Candidate("ease")
    assert auto.findings[-1].startswith("chose ease, ")


def test_ratings_are_compared_by_their_error():
    rng = np.random.default_rng(0)
    low_rank = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 50))
    table = np.where(
        rng.random((80, 50)) < 0.7, np.round(np.clip(3 + low_rank, 1, 5)), np.nan
    )
    ratings = Ratings.from_matrix(table)
    candidates = Candidate("bias"), Candidate("als", {"factors": 3})
    auto = Auto().among(Choice(candidates, ratings, "a test"))
    assert auto.compare(ratings).model == "als"
    assert auto.findings[1].startswith("RMSE on ")


def test_without_a_comparison_auto_is_the_only_candidate():
    ratings = explicit((20, 10))
    recommender = Recommender("auto").fit(ratings)
    assert recommender.model.name == "als"
    assert "choice" not in recommender.training


@pytest.mark.parametrize(
    "values",
    [PLAYS, [1, 1, 2, 11], [3, 4, 400], [0.1, 2.5, 1.5, 340.5]],
    ids=["plays", "few", "large", "hours"],
)
def test_counts_are_told(values):
    assert judge_values(np.array(values)).kind == "counts"


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4, 5],
        [1, 1, 1, 10],  # the worst grade is given most
        [0, 20, 100, 55],
        [70, 85, 20, 100],
        [1, 2, 1, -50, 50],
        [1, 0, 1, 210],
        [],
    ],
)
def test_ratings_are_not_counts(values):
    assert judge_values(np.array(values)).kind != "counts"


def test_counts_weigh_1_on_average_and_grades_their_share_of_the_highest():
    assert weight_unit(Ratings.from_matrix(PLAYS.reshape(50, 40))) == pytest.approx(
        PLAYS.mean()
    )
    assert weight_unit(Ratings.from_matrix(np.array([[1.0, 5.0], [4.0, 3.0]]))) == 5


def test_as_implicit_leaves_who_has_what():
    ratings = Ratings.from_matrix(np.array([[3.0, np.nan], [40.0, 1.0]]))
    implicit = as_implicit(ratings)
    assert implicit.implicit
    np.testing.assert_array_equal(implicit.values, 1)
    np.testing.assert_array_equal(implicit.indices, ratings.indices)


def walks(n_users=300, n_items=60, seed=0):
    """Users who go from item to item in one order: what comes next is planted."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(n_users):
        item = int(rng.integers(n_items))
        for step in range(10):
            rows.append((user, item, 100 * user + step))
            item = (
                item + (1 if rng.random() < 0.8 else int(rng.integers(n_items)))
            ) % n_items
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def test_next_is_chosen_for_planted_transitions_and_only_when_requested():
    ratings = Ratings.from_frame(walks())
    assert "next" not in names_of(choose_model(ratings))
    choice = choose_model(ratings, "next")
    assert names_of(choice) == ["spectral", "ials", "ease", "next"]
    assert "for what comes next, judged by the last item of each user" in choice.reason
    auto = Auto(purpose="next")
    recommender = Recommender(auto).fit(ratings)
    fitted = recommender.model
    assert fitted.name == "next" or "next" in fitted.members
    # What followed item 7 most often is first after it.
    assert recommender.recommend(history=[5, 6, 7], n=1)["item"][0] == 8
    assert recommender.provenance.request.parameters == {"purpose": "next"}


def test_the_winner_has_the_highest_ndcg_on_the_last_items():
    frame = walks().with_columns(
        # Without an order, next has nothing to win by.
        timestamp=pl.Series(np.random.default_rng(1).permutation(3000))
    )
    auto = Auto(purpose="next")
    Recommender(auto).fit(Ratings.from_frame(frame))
    figures = dict(
        pair.rsplit(" ", 1)
        for pair in auto.findings[1].partition(": ")[2].split(", ")
        if " + " not in pair
    )
    best = max(figures, key=lambda name: float(figures[name]))
    assert best in auto.findings[2]


@pytest.mark.parametrize("times", [None, 7])
def test_without_times_it_says_why_next_is_not_tried(times):
    frame = walks().with_columns(timestamp=pl.lit(times))
    if times is None:
        frame = frame.drop("timestamp")
    choice = choose_model(Ratings.from_frame(frame), "next")
    assert "next" not in names_of(choice)
    assert "timestamps, so next is not tried: judged as for later" in choice.reason


def test_grades_and_weights_of_what_comes_next():
    grades = walks().with_columns(rating=pl.Series(1.0 + np.arange(3000) % 5))
    choice = choose_model(Ratings.from_frame(grades), "next")
    assert choice.ratings.implicit
    assert not choice.ratings.weighted
    assert choice.reason.startswith("ratings between 1 and 5 count as interactions")
    weighted = Ratings.from_frame(
        grades.rename({"rating": "amount"}), implicit=True, weight="amount"
    )
    assert choose_model(weighted, "next").ratings is weighted


def test_few_users_cannot_compare_what_comes_next():
    choice = choose_model(Ratings.from_frame(walks(n_users=20)), "next")
    assert names_of(choice) == ["next"]
    assert "20 users with two items are too few to compare" in choice.reason


def test_the_default_is_for_later_and_unchanged():
    ratings = Ratings.from_frame(walks())
    assert Auto().purpose == "later"
    assert str(choose_model(ratings, "later")) == str(choose_model(ratings))
    with pytest.raises(DataError, match="purpose must be one of later, next"):
        Auto(purpose="tomorrow")


def test_the_command_says_what_the_lists_are_for(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(cli, [*arguments])

    clicks = tmp_path / "clicks.csv"
    walks().write_csv(clicks)
    model = str(tmp_path / "model")
    fitted = run("fit", str(clicks), "--for", "next", "--out", model)
    assert fitted.exit_code == 0
    lines = fitted.stderr.splitlines()
    assert lines[1].startswith("comparing spectral, ials, ease, next: ")
    assert "for what comes next" in lines[1]
    later = run("fit", str(clicks), "--for", "later", "--out", model, "--force")
    assert "for what comes later, judged by random items" in later.stderr
    for_next = ("--model", "auto", "--for", "next", "--method", "leave-last")
    evaluated = run("evaluate", str(clicks), *for_next)
    assert "auto: spectral, ials, ease, next: " in evaluated.stderr
    assert evaluated.exit_code == 0, evaluated.output
    for verb, arguments in (("fit", ["--out", "x"]), ("tune", [])):
        of_ease = ("--for", "next", "--model", "ease")
        wrong = run(verb, str(clicks), *of_ease, *arguments)
        assert wrong.exit_code == 2
        assert "--for is for --model auto, not for ease" in wrong.stderr
    wrong = run("evaluate", str(clicks), "--model", "ease", "--for", "next")
    assert "--for needs --model auto" in wrong.stderr
    wrong = run("fit", str(clicks), "-p", "auto.purpose=next", "--out", "x")
    assert wrong.exit_code == 2


def test_a_budget_is_a_time_and_said_in_words():
    assert Auto(budget="2min").budget == Auto(budget=120).budget == 120
    assert Recommender("auto", budget="1h").model.budget == 3600
    for wrong in ("soon", "60", -1, True):
        with pytest.raises(DataError, match="budget must be a duration in s, min, h"):
            Auto(budget=wrong)


def test_a_budget_leaves_out_the_slowest_models(monkeypatch):
    ratings = tastes()
    monkeypatch.setattr(effort, "rate", lambda threads: 1e9)
    auto = Auto(budget=45)
    assert "without ials" in auto.announcement(ratings)
    auto.fit(ratings)
    assert "ials" not in auto.findings[0]
    assert auto.findings[-1] == "left out for the budget of 45 s: ials"
    assert "without" not in Auto().announcement(ratings)


def test_a_short_budget_compares_on_a_sample_before_it_leaves_models_out(monkeypatch):
    ratings = tastes()
    monkeypatch.setattr("recsys.models.holdout.FEW", 500)
    monkeypatch.setattr(effort, "rate", lambda threads: 1e9)
    schedule = Auto(budget="1h")._schedule(Auto().choose(ratings), ratings)
    models = range(len(schedule.final))
    auto = Auto(budget=0.8 * schedule.seconds(models))
    unused = r"interactions above [\d,]+ in the comparison"
    assert re.search(
        f"expected to end in .*, without {unused}$", auto.announcement(ratings)
    )
    auto.fit(ratings)
    assert auto.findings[0].startswith("compared spectral, ials, ease")
    n_held_out = int(
        re.search(r"on ([\d,]+) held-out", auto.findings[1])[1].replace(",", "")
    )
    assert n_held_out < 0.7 * ratings.n_ratings / 10
    assert re.search(f"^left out for the budget of .* s: {unused}$", auto.findings[-1])


def test_the_smallest_budget_fits_the_fastest_model(monkeypatch):
    ratings = tastes()
    monkeypatch.setattr(effort, "rate", lambda threads: 1e9)
    auto = Auto(budget=1).fit(ratings)
    omitted = {"spectral", "ials", "ease"} - {auto.chosen.name}
    assert auto.findings[0] == f"chose {auto.chosen.name} without a comparison"
    assert all(name in auto.findings[1] for name in omitted)


@pytest.mark.parametrize(
    "ratings", [tastes(), explicit((60, 50))], ids=["likes", "stars"]
)
def test_a_comparison_ends_when_it_is_slower_than_expected(ratings, monkeypatch):
    monkeypatch.setattr(effort, "rate", lambda threads: 1e18)
    auto = Auto(budget=0.001).fit(ratings)
    assert "left out for the budget of 0.001 s: " in auto.findings[-1]
    assert auto.candidate == auto.choose(ratings).candidates[0]
    # Lists of a single model need no time.
    is_compared = not auto.findings[0].endswith(" without a comparison")
    assert is_compared != ratings.implicit


def test_no_budget_changes_nothing(monkeypatch):
    ratings = tastes()
    plenty = Auto(budget="9h").fit(ratings)
    assert plenty.findings == Auto().fit(ratings).findings


def test_the_counted_trials_and_sweeps_are_those_of_the_estimate(monkeypatch):
    n_trials = n_sweeps = 0

    def implicit_sweeps(weights, k, **options):
        nonlocal n_trials, n_sweeps
        is_trial = weights.nnz < ratings.n_ratings
        n_trials += is_trial
        for sweep in original(weights, k, **options):
            n_sweeps += not is_trial
            yield sweep

    original = ials.implicit_sweeps
    monkeypatch.setattr(ials, "implicit_sweeps", implicit_sweeps)
    ratings = tastes(300, 80)
    model = make_model("ials", factors=60).fit(ratings)
    needed = effort.effort(model, ratings)
    short = make_model("ials", factors=60, iterations=1)
    of_a_sweep = effort.effort(short, ratings).fit - effort.FIRST
    assert 0.5 < (needed.fit - effort.FIRST) / (n_sweeps * of_a_sweep) < 2
    # Of so few interactions, five folds are held out in turn.
    assert 0.5 < ials.FOLDS * effort.N_TRIALS / n_trials < 2


def test_the_command_says_how_long_it_will_take(tmp_path):
    def run(*arguments):
        out = ("--out", str(tmp_path / "model"), "--force")
        return CliRunner().invoke(cli, ["fit", str(clicks), *out, *arguments])

    clicks = tmp_path / "clicks.csv"
    walks().drop("timestamp").write_csv(clicks)
    lines = run("--budget", "5min").stderr.splitlines()
    assert re.search("^comparing .*; expected to end in [0-9]+ s$", lines[1])
    left_out = run("--budget", "0.01s").stderr
    assert re.search(r"; expected to end in \d+ s, without [a-z, ]+\n", left_out)
    assert "left out for the budget of 0.01 s: " in left_out
    assert "--budget must be a duration" in run("--budget", "soon").stderr
    wrong = run("--model", "ease", "--budget", "5s")
    assert wrong.exit_code == 2
    assert "--budget is for --model auto, not for ease" in wrong.stderr


def test_lists_of_a_model_are_its_best_items_however_many_are_searched(monkeypatch):
    ratings = tastes(300, 80)
    (fold,) = HeldOut.folds(ratings, 0)[:1]
    models = [make_model(name).fit(fold.train) for name in ("spectral", "ials")]
    complete = fold.lists(models)
    monkeypatch.setattr("recsys.models.holdout._DEPTH", 20)
    searched = fold.lists(models)
    assert searched.scores.shape[2] < complete.scores.shape[2]
    for of_one_model in np.eye(2):
        np.testing.assert_allclose(
            searched.ndcg(of_one_model), complete.ndcg(of_one_model), atol=1e-12
        )
