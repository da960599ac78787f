"""What comes next after an item: the command, Python and the service, with other errors alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from serving import Application

from recsys import DataError, Ratings, Recommender
from recsys.cli.main import cli
from recsys.serve import create_app

N_ITEMS = 12
NO_ORDER = r"The ease model does not know what comes next after an item; fit next"


def walk() -> Ratings:
    """Item i is followed by i + 1; titles are numbers in words."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(60):
        first = int(rng.integers(N_ITEMS))
        rows += [
            (user, (first + step) % N_ITEMS, 100 * user + step) for step in range(5)
        ]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    titles = [f"Part {chr(65 + item)}" for item in range(N_ITEMS)]
    table = pl.DataFrame({"item": range(N_ITEMS), "title": titles})
    return Ratings.from_frame(frame, item_table=table)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    fits = {
        "next": Recommender("next"),
        "ease": Recommender("ease"),
        "blend": Recommender("blend", members="next,ease", weights="0.8,0.2"),
    }
    for name, recommender in fits.items():
        recommender.fit(walk()).save(folder / name)
    return {name: folder / name for name in fits}


@pytest.mark.parametrize("name", ["next", "blend"])
def test_what_comes_next_is_recommended_after_the_item_alone(
    models: dict[str, Path], name: str
) -> None:
    recommender = Recommender.load(models[name])
    found = recommender.similar_items([3, 7], n=4, next=True)
    for item in (3, 7):
        alone = recommender.recommend(history=[item], n=4)
        rows = found.filter(item=item)
        assert rows["similar"].to_list() == alone["item"].to_list()
        assert rows["score"].to_list() == pytest.approx(alone["score"].to_list())
        assert rows["similar"][0] == item + 1


def test_conditions_hold_for_what_comes_next(models: dict[str, Path]) -> None:
    recommender = Recommender.load(models["next"])
    found = recommender.similar_items(3, n=2, next=True, items=[1, 2, 5])
    assert set(found["similar"]) <= {1, 2, 5}
    with pytest.raises(DataError, match="next needs items; got a text"):
        recommender.similar_items(text="part", next=True)
    with pytest.raises(DataError, match=NO_ORDER):
        Recommender.load(models["ease"]).similar_items(3, next=True)


def test_the_command_lists_what_follows_a_title(models: dict[str, Path]) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["similar", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    lines = run(str(models["next"]), "--title", "Part D", "--next", "-n", "1").split()
    assert lines[-1] == "E"
    rows = run(str(models["next"]), "--all", "--next", "-n", "1", "--format", "csv")
    assert rows.splitlines()[1].startswith("0,1,1,")
    assert "fit next" in run(str(models["ease"]), "--item", "3", "--next", code=1)
    wrong = run(str(models["next"]), "--user", "3", "--next", code=2)
    assert "--next is for --item, --title or --all" in wrong


def test_the_service_answers_what_comes_next(models: dict[str, Path]) -> None:
    with Application(create_app(str(models["next"]))) as service:
        service.ready()
        answer = service.get("/v1/similar/3?next=true&n=2").json
        filtered = service.get(
            "/v1/similar/3?next=true&where=title%20%3D%20%27Part%20A%27"
        ).json
    assert answer["items"][0]["item"] == "4"
    assert len(answer["items"]) == 2
    assert [row["item"] for row in filtered["items"]] == ["0"]
    with Application(create_app(str(models["ease"]))) as service:
        failed = service.ready().get("/v1/similar/3?next=true")
    assert 400 <= failed.status < 500
    assert "fit next" in failed.json["detail"]
