"""Write the figures of README.md from RESULTS.md: `python benchmarks/readme.py`.

They stand between two comments of README.md. `tests/test_docs.py` compares them.
"""

from __future__ import annotations

import re

from pictures import RATINGS, RESULTS, Row, number, table

README = RESULTS.parent.parent / "README.md"
CLICKS = "Top-N on Gowalla's published split"
BILLION = "A billion ratings"
SAME_INFORMATION = "Ratings with the same information"
PEERS = ("Surprise", "LensKit")
_FIGURES = re.compile(
    r"(?<=<!-- benchmarks/readme.py -->\n).*?(?=<!-- end -->)", re.DOTALL
)


def figures(results: str) -> str:
    """Return the sentences with figures, given the text of RESULTS.md."""
    errors = {row["model"]: row["RMSE"].split()[0] for row in table(results, RATINGS)}
    peers = [name for name in errors if name.startswith(PEERS)]
    best = min(peers, key=lambda name: number(errors[name]))
    timed = errors["bayes, times known"]
    informed = {
        row["model"]: row["RMSE"].split()[0] for row in table(results, SAME_INFORMATION)
    }
    linked = informed["myFM, linked"]
    linked_timed = informed["myFM, linked, times known"]
    ranks = {row["model"]: row for row in table(results, CLICKS)}
    recall, ndcg = ranks["auto"]["Recall@20"], ranks["auto"]["NDCG@20"]
    size = table(results, BILLION)[0]
    return f"""- **Ratings**, five splits of ml-latest-small: `bayes` has an RMSE of {errors["bayes"]} without
  timestamps and {timed} with them. It also learns from which items a user rated: with the same information, myFM of rank 8
  has {linked} and {linked_timed}; without it, the best tuned model of Surprise and LensKit ({best}) has {errors[best]}.
- **Clicks**, the published split of Gowalla: `auto` has a Recall@20 of {recall} and an NDCG@20 of {ndcg}.
- **Size**: two cores read a billion ratings, fit `als` with 64 factors (three sweeps), save the
  model and recommend in {minutes(size):.1f} minutes and {size["peak GB"]} GB.
"""  # noqa: E501


def minutes(row: Row) -> float:
    """Return the time of all stages."""
    stages = ("read s", "fit s", "save s", "load s", "top 20 s")
    return sum(number(row[stage]) for stage in stages) / 60


def with_figures(readme: str, results: str) -> str:
    """Return the text of README.md with the figures of RESULTS.md.

    Raises
    ------
    ValueError
        If README.md has no place for them.
    """
    text, n_places = _FIGURES.subn(lambda _: figures(results), readme)
    if n_places != 1:
        raise ValueError("README.md must have one place between the two comments.")
    return text


if __name__ == "__main__":
    text = with_figures(
        README.read_text(encoding="utf-8"), RESULTS.read_text(encoding="utf-8")
    )
    README.write_text(text, encoding="utf-8")
