"""Models of one's own: parameters, saving, tuning, blending, and the command."""

import copy
import inspect
import sys
from typing import Optional

import numpy as np
import pytest

from recsys import Recommender, evaluate, random_split, read_ratings, sample_path, tune
from recsys.cli.main import cli
from recsys.errors import DataError, ModelFileError
from recsys.models import Explanation, Histories, Model, fitted, model, parameter
from recsys.models.registry import MODEL_CLASSES


@model
class Damped(Model):
    """Means of items, damped towards 0."""

    name = "damped"
    damping: float = parameter(5.0, "Weight of 0.", low=1.0, high=50.0)
    n_users: int = fitted()
    n_items: int = fitted()
    means: np.ndarray = fitted("n_items")

    def _fit(self, ratings, progress):
        self.n_users, self.n_items = ratings.shape
        sums = np.bincount(ratings.indices, ratings.values, self.n_items)
        self.means = sums / (self.damping + ratings.counts("item"))

    def predict(self, users, items):
        return self.means[np.asarray(items)]

    def scores(self, users):
        return np.tile(self.means, (len(users), 1))


# The same class in a file, under another name.
IN_A_FILE = (
    inspect.getsource(Damped)
    .replace("Damped", "Mine")
    .replace('"damped"', '"mine-in-a-file"')
)
CODE = f"""
import numpy as np
from recsys.models import Model, fitted, model, parameter

{IN_A_FILE}

class Bare:
    pass
"""


@pytest.fixture(scope="module")
def ratings():
    return read_ratings(sample_path())


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (int, int),
        (int | None, int),
        (Optional[float], float),  # noqa: UP045
        ("bool", bool),
        ("str | None", str),
        ("Optional[int]", int),
    ],
)
def test_parameters_may_be_annotated_in_any_way(annotation, kind):
    annotations = {"x": annotation}
    body = {"__annotations__": annotations, "x": parameter(None, "A parameter.")}
    (declared,) = model(type("Any", (Model,), body)).parameters()
    assert declared.type is kind


def test_rejects_a_parameter_of_another_type():
    body = {"__annotations__": {"x": list}, "x": parameter(None, "A parameter.")}
    with pytest.raises(TypeError, match="parameter x of Lists must be annotated"):
        model(type("Lists", (Model,), body))


def test_checks_values_of_own_parameters():
    with pytest.raises(DataError, match="damping must be positive; got -1"):
        Damped(damping=-1)


def test_loads_only_a_class_that_is_named(ratings, tmp_path):
    path = tmp_path / "model"
    saved = Recommender(Damped(damping=2.0)).fit(ratings)
    saved.save(path)
    with pytest.raises(ModelFileError, match=r"models=\[MyModel\]"):
        Recommender.load(path)
    loaded = Recommender.load(path, models=[Damped])
    assert loaded.model.get_params() == {"damping": 2.0}
    assert loaded.recommend(1).equals(saved.recommend(1))


def test_loads_a_blend_only_with_the_classes_of_its_members(ratings, tmp_path):
    @model
    class Halved(Damped):
        name = "halved"

    path = tmp_path / "model"
    saved = Recommender("blend", members="bias, halved").fit(ratings)
    saved.save(path)
    with pytest.raises(ModelFileError, match=r"kind 'halved'.*models=\[MyModel\]"):
        Recommender.load(path)
    loaded = Recommender.load(path, models=[Halved])
    assert loaded.recommend(1).equals(saved.recommend(1))


def test_rejects_saving_what_would_be_lost(ratings, tmp_path):
    class Undecorated(Damped):
        pass

    @model
    class Undeclared(Damped):
        name = "undeclared"

        def _fit(self, ratings, progress):
            super()._fit(ratings, progress)
            self.extra = np.zeros(3)

    with pytest.raises(ModelFileError, match="needs the decorator @model"):
        Recommender(Undecorated()).fit(ratings).save(tmp_path / "one")
    with pytest.raises(
        ModelFileError, match="extra of a Undeclared would not be saved"
    ):
        Recommender(Undeclared()).fit(ratings).save(tmp_path / "two")


@pytest.mark.parametrize("models", [["damped"], [Damped()], [int], int])
def test_only_classes_of_models_are_loaded(models, tmp_path):
    with pytest.raises(DataError, match=r"classes of models, as in \[MyModel\]; got"):
        Recommender.load(tmp_path, models=models)


def test_a_single_class_is_loaded(ratings, tmp_path):
    Recommender(Damped()).fit(ratings).save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model", models=Damped)
    assert isinstance(loaded.model, Damped)


@pytest.mark.parametrize("predicted", [3.0, [3.0], ["3"], None])
def test_predictions_are_one_number_for_each_pair(ratings, predicted):
    class Constant(Damped):
        name = "constant"

        def predict(self, users, items):
            return predicted

    fitted_model = Recommender(Constant()).fit(ratings)
    pairs = [(1, 1), (1, 2)]
    with pytest.raises(DataError, match=r"one number for each pair, shape \(2,\); got"):
        fitted_model.predict(pairs)
    with pytest.raises(DataError, match="one number for each pair"):
        list(fitted_model.impute(users=[1]))


def test_a_model_without_scores_or_name_is_an_error(ratings):
    @model
    class Silent(Model):
        name = "silent"
        predicts_ratings = False
        n_users: int = fitted()
        n_items: int = fitted()

        def _fit(self, ratings, progress):
            self.n_users, self.n_items = ratings.shape

    with pytest.raises(DataError, match=r"silent model must define `scores\("):
        evaluate(Silent(), ratings)
    del Silent.name
    with pytest.raises(DataError, match=r"whose class has a name .*; got"):
        evaluate(Silent(), ratings)


def test_tunes_a_model_and_keeps_its_parameters(ratings):
    tuned = tune(Damped(), ratings, trials=2)
    assert list(tuned.parameters) == ["damping"]
    with pytest.raises(DataError, match="no parameter left to tune"):
        tune(Damped(damping=3.0), ratings, trials=1)


def test_blends_own_models_by_name(ratings):
    blend = Recommender("blend", members="bias,damped").fit(ratings).model
    assert len(blend.shares) == 2


def test_ratings_are_split_as_the_command_does(ratings):
    by_default = evaluate(Damped(), ratings, metrics=["rmse"], resamples=0)
    assert by_default.splits[0].method == "time"


def test_tunes_by_an_own_metric(ratings):
    def misses(hits):
        return 1.0 - hits.any(axis=1)

    from recsys.evaluation import Metric

    metric = Metric("misses", misses, "share of lists without a hit", direction=-1)
    tuned = tune("popular", ratings, metric=metric, trials=3)
    complete = [trial.value for trial in tuned.trials if trial.value is not None]
    assert tuned.metric == "misses@10"
    assert tuned.best.value == min(complete)


def test_command_takes_a_class_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(MODEL_CLASSES, "")
    (tmp_path / "own.py").write_text(CODE)
    fit = ["fit", str(sample_path()), "--model", "own.py::Mine", "-p", "damping=2"]

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli(list(words))
        return end.value.code, capsys.readouterr()

    assert run(*fit, "--out", "model")[0] == 0
    recommend = ["recommend", "model", "--user", "1", "-n", "2", "--format", "csv"]
    # As in a new process.
    monkeypatch.setattr("recsys.models.registry._LOADABLE", {})
    monkeypatch.delenv(MODEL_CLASSES)
    code, output = run(*recommend)
    assert code == 1
    assert "--model-class own.py::MyModel" in output.err
    code, output = run(*recommend, "--model-class", "own.py::Mine")
    assert code == 0
    assert output.out.count("\n") == 3
    code, output = run(*fit[:-1], "dampng=2", "--out", "other")
    assert code == 2
    assert "Did you mean damping?" in output.err
    assert "`recsys models own.py::Mine`" in output.err
    assert run("models", "own.py::Mine")[0] == 0
    blend = ["--model", "blend", "-p", "members=als,own.py::Mine", "--out", "blend"]
    code, output = run(*fit[:2], *blend)
    assert code == 1
    assert "name it by --model-class, and then by its own name" in output.err
    # The workers of a service get the class by the environment.
    monkeypatch.setattr("recsys.models.registry._LOADABLE", {})
    assert Recommender.load("model").model.name == "mine-in-a-file"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("absent.py::Mine", "There is no file absent.py"),
        ("own.py::Min", r"'Min' of own.py; there are Mine\. Did you mean Mine\?"),
        ("own.py::Bare", "no class of models 'Bare' of own.py; there are Mine"),
        ("broken.py::Mine", "broken.py cannot be run: ZeroDivisionError"),
    ],
)
def test_rejects_an_address_without_a_class(tmp_path, monkeypatch, address, reason):
    from recsys.models.registry import class_in_file

    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(DataError, match=reason):
        class_in_file(address)


def test_scores_of_any_numeric_type_are_converted(ratings):
    class Counts(Damped):
        def scores(self, users):
            return np.tile(np.arange(self.n_items), (len(users), 1))

    split = random_split(ratings, random_state=0)
    table = evaluate(Counts(), split, metrics=["ndcg"], resamples=0).table
    assert np.isfinite(table["ndcg@10"][0])


def test_own_modules_do_not_hide_others(tmp_path):
    from recsys.models.registry import class_in_file

    (tmp_path / "json.py").write_text(CODE)
    class_in_file(f"{tmp_path / 'json.py'}::Mine")
    assert "Mine" not in vars(sys.modules.get("json", object))


def test_masked_scores_leave_items_out(ratings):
    @model
    class Masked(Damped):
        name = "masked"

        def scores(self, users):
            scores = super().scores(users)
            return np.ma.masked_array(scores, self.means == self.means.max())

        def predict(self, users, items):
            return np.ma.masked_array(
                super().predict(users, items), np.asarray(items) == 0
            )

    recommender = Recommender(Masked()).fit(ratings)
    best = ratings.items.values[int(recommender.model.means.argmax())]
    assert best not in recommender.recommend(1, exclude_seen=False)["item"].to_list()
    user, item = ratings.users.values[0], ratings.items.values[0]
    assert np.isnan(recommender.predict([(user, item)])["prediction"][0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda predicted: predicted[:-1], r"one number for each pair, shape \(\d+,\)"),
        (lambda predicted: predicted.astype(str), "one number for each pair"),
        (
            lambda predicted: np.where(predicted > 0, np.nan, 0),
            "must be finite; got nan",
        ),
    ],
)
def test_rejects_predictions_that_are_not_numbers_of_the_pairs(ratings, change, reason):
    class Changed(Damped):
        def predict(self, users, items):
            return change(super().predict(users, items))

    split = random_split(ratings)
    with pytest.raises(DataError, match=f"predictions of the damped model .*{reason}"):
        evaluate(Changed(), split, metrics=["rmse"], resamples=0)


@model
class Together(Model):
    """Count the users that two items have in common."""

    name = "together"
    predicts_ratings = False
    shrink: float = parameter(10.0, "Weight of no users.", low=1.0, high=100.0)
    n_users: int = fitted()
    n_items: int = fitted()
    similarity: np.ndarray = fitted("n_items", "n_items")
    rated: np.ndarray = fitted("n_users", "n_items")

    def _fit(self, ratings, progress):
        self.n_users, self.n_items = ratings.shape
        self.rated = self._rated_in(Histories.of(ratings))
        common = self.rated.T @ self.rated
        np.fill_diagonal(common, 0)
        self.similarity = common / (self.shrink + self.rated.sum(axis=0))

    def _rated_in(self, histories):
        rated = np.zeros((histories.n_rows, self.n_items), np.float32)
        rated[histories.rows, histories.indices] = 1
        return rated

    def scores(self, users):
        return self.rated[users] @ self.similarity

    def with_users(self, histories):
        folded = copy.copy(self)
        folded.n_users = histories.n_rows
        folded.rated = self._rated_in(histories)
        return folded

    def contributions(self, history, items, fitted=None):
        terms = self.similarity[np.ix_(history.indices, items)].T
        return Explanation(np.zeros(len(items)), terms)


def test_an_own_model_folds_in_and_explains(ratings, tmp_path):
    recommender = Recommender(Together()).fit(ratings)
    recommender.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model", models=[Together])
    history = ratings.indices[ratings.indptr[0] : ratings.indptr[1]]
    new = loaded.fold_in(ratings.items.values.gather(history))
    user = ratings.users.values[0]
    expected = recommender.recommend(user, n=3)
    assert new.recommend("new", n=3)["item"].equals(expected["item"])
    for row in expected.to_dicts():
        parts = loaded.explain(user, row["item"])["contribution"]
        assert parts.sum() == pytest.approx(row["score"], rel=1e-5)
    blend = Recommender("blend", members="popular,together").fit(ratings)
    row = blend.recommend(user, n=1).to_dicts()[0]
    parts = blend.explain(user, row["item"])["contribution"]
    assert parts.sum() == pytest.approx(row["score"], rel=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        lambda model, folded: vars(model).update(vars(folded)) or model,
        lambda model, folded: model._with(),
        lambda model, folded: folded.rated,
        lambda model, folded: None,
    ],
    ids=["the same model", "other users", "an array", "nothing"],
)
def test_rejects_a_fold_in_without_a_copy(ratings, change):
    class Changed(Together):
        def with_users(self, histories):
            return change(self, super().with_users(histories))

    recommender = Recommender(Changed()).fit(ratings)
    with pytest.raises(DataError, match="return a copy of the model, with n_users = 1"):
        recommender.fold_in([1])


@pytest.mark.parametrize(
    "change",
    [
        lambda base, terms: (base, terms),
        lambda base, terms: Explanation(base, terms.T),
        lambda base, terms: Explanation(0.0, terms),
        lambda base, terms: Explanation(base, terms.tolist()),
        lambda base, terms: Explanation(base * np.nan, terms),
    ],
    ids=["a tuple", "a row for each rating", "a number", "lists", "NaN"],
)
def test_rejects_contributions_of_other_shapes(ratings, change):
    class Changed(Together):
        def contributions(self, history, items, fitted=None):
            return change(*super().contributions(history, items)[:2])

    recommender = Recommender(Changed()).fit(ratings)
    with pytest.raises(DataError, match="must return an Explanation of finite arrays"):
        recommender.explain(1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda vectors: vectors.T[:3],
        lambda vectors: vectors[:, 0],
        lambda vectors: vectors * np.nan,
        lambda vectors: vectors.tolist(),
        lambda vectors: None,
    ],
    ids=["columns", "a vector", "NaN", "lists", "nothing"],
)
def test_rejects_vectors_of_other_shapes(ratings, change):
    class Placed(Together):
        def item_vectors(self):
            return change(self.similarity)

    recommender = Recommender(Placed()).fit(ratings)
    item = ratings.items.values[0]
    message = (
        r"item_vectors of the together model must return an array of finite numbers"
    )
    with pytest.raises(DataError, match=message):
        recommender.similar_items(item, n=3)
    with pytest.raises(DataError, match=message):
        recommender.recommend(ratings.users.values[0], n=3, diversity=0.5)


def test_rejects_contributions_that_do_not_add_up_to_the_score(ratings):
    class Halved(Together):
        def contributions(self, history, items, fitted=None):
            base, terms, *_ = super().contributions(history, items)
            return Explanation(base, terms / 2)

    recommender = Recommender(Halved()).fit(ratings)
    user, item = recommender.recommend(ratings.users.values[0], n=1).row(0)[:2]
    with pytest.raises(DataError, match="must add up to the score; they add up to"):
        recommender.explain(user, item)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"extra": {1: 2}}, "extra of a Together would not be saved; make it an array"),
        ({"rated": np.array(["1"])}, "'rated' must have numbers or booleans; got <U1"),
        ({"rated": None}, "an array 'rated', which is missing"),
        ({"rated": np.zeros(3)}, r"'rated' must have shape \(n_users, n_items\)"),
    ],
)
def test_rejects_saving_a_model_that_could_not_be_loaded(
    ratings, tmp_path, change, reason
):
    recommender = Recommender(Together()).fit(ratings)
    vars(recommender.model).update(change)
    with pytest.raises(ModelFileError, match=reason):
        recommender.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_rejects_saving_a_blend_whose_member_could_not_be_loaded(ratings, tmp_path):
    recommender = Recommender("blend", members="popular,together").fit(ratings)
    recommender.model.parts[1].extra = {1: 2}
    with pytest.raises(ModelFileError, match="extra of a Together would not be saved"):
        recommender.save(tmp_path / "model")


def test_command_takes_files_with_neighbours_and_spaces(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "damping_of_items.py").write_text("DAMPING = 3.0")
    code = CODE.replace("mine-in-a-file", "mine-with-a-neighbour").replace(
        "5.0", "DAMPING"
    )
    (folder / "own.py").write_text(f"from damping_of_items import DAMPING\n{code}")
    (tmp_path / "own.py").write_text(code.replace("DAMPING", "5.0"))
    monkeypatch.setenv(MODEL_CLASSES, "")
    address = f"{folder}/own.py::Mine"
    data = str(sample_path())

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli(list(words))
        return end.value.code, capsys.readouterr()

    model_path = str(tmp_path / "model")
    assert run("fit", data, "--model", address, "--out", model_path)[0] == 0
    # As in a new process.
    monkeypatch.setattr("recsys.models.registry._LOADABLE", {})
    monkeypatch.setenv(MODEL_CLASSES, address)
    assert run("recommend", model_path, "--user", "1")[0] == 0
    other = f"{tmp_path}/own.py::Mine"
    code, output = run("evaluate", data, "--model", f"{address},{other}")
    assert code == 2
    assert "'mine-with-a-neighbour' has two values" in output.err
    monkeypatch.setenv(MODEL_CLASSES, "")
    split = ["--method", "per-user", "--format", "csv", "--quiet"]
    code, output = run("evaluate", data, "--model", f"{other}:no-features", *split)
    assert code == 0
    assert "mine-with-a-neighbour:no-features," in output.out
