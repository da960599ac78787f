"""The subset of parameters on which tests with the marker `covering` run."""

import os
from itertools import combinations, product

import pytest
from covering import covering_rows, left_out

ROWS = [
    {"dtype": d, "container": c, "method": m, "shape": s, "rows": s}
    for d, c, m, s in product(range(2), range(5), range(4), range(3))
]


@pytest.mark.parametrize(("strength", "size"), [(1, 5), (2, 26)])
def test_all_values_meet_in_far_fewer_rows(strength, size):
    chosen = covering_rows(ROWS, strength)
    assert len(chosen) <= size
    wanted = {pair for row in ROWS for pair in combinations(row.items(), strength)}
    met = {pair for i in chosen for pair in combinations(ROWS[i].items(), strength)}
    assert met == wanted


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("container", [[1], [2], [3]])
@pytest.mark.parametrize("method", ["als", "gram", "auto"])
def test_the_marker_takes_a_subset(request, dtype, container, method):
    name = request.function.__name__
    run = [item for item in request.session.items if item.name.startswith(name)]
    assert len(run) < 18 or os.environ.get("HYPOTHESIS_PROFILE") == "long"


def test_one_parameter_keeps_all_of_its_values():
    assert covering_rows([{"n": 0}, {"n": 1}], 2) == [0, 1]
    assert covering_rows([{}], 2) == [0]


def test_runs_all_tests_without_the_marker(request):
    items = request.session.items
    unmarked = [item for item in items if not item.get_closest_marker("covering")]
    assert left_out(unmarked) == set()
