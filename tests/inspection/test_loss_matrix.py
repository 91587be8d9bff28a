"""Pictures of losses and rounds: what is drawn are the numbers of the fit."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skcfl import (
    CLoVE,
    CLoVEClassifier,
    CLoVERegressor,
    IFCARegressor,
    LocalModelsRegressor,
    Record,
    Training,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.inspection import LossMatrixDisplay, RoundsDisplay
from skcfl.models import Location

pytest.importorskip("matplotlib.pyplot")


DATA = make_clustered_regression(n_clients=9, n_clusters=3, n_samples=20, random_state=0)
ROWS = {"X": DATA.X, "y": DATA.y, "groups": DATA.groups}


@pytest.fixture(scope="module")
def fitted():
    record = Record(true_labels=DATA.labels, models=True)
    return CLoVERegressor(n_clusters=3, record=record, random_state=0).fit(**ROWS)


# ------------------------------------------------------------------ loss matrix


def test_matrix_is_the_losses_of_the_clients(fitted):
    display = LossMatrixDisplay.from_estimator(fitted, **ROWS)
    model = fitted.model_
    for i, client in enumerate(fitted.groups_):
        mine = DATA.groups == client
        for k, params in enumerate(fitted.cluster_params_):
            prediction = model.decision(DATA.X[mine], params[None], np.zeros(mine.sum(), int))
            expected = 0.5 * np.mean((prediction.ravel() - DATA.y[mine]) ** 2)
            assert display.losses[i, k] == pytest.approx(expected)
    assert_array_equal(fitted.assign(DATA.X, DATA.y, DATA.groups), display.losses.argmin(axis=1))


def test_rows_are_sorted_by_cluster_and_the_assignment_is_outlined(fitted):
    display = LossMatrixDisplay.from_estimator(fitted, **ROWS)
    assert_array_equal(fitted.labels_[display.order_], np.sort(fitted.labels_))
    drawn = display.image_.get_array()
    assert_array_equal(drawn, np.asarray(display.losses)[display.order_])
    first = 0
    for k, (mark, size) in enumerate(zip(display.marks_, fitted.cluster_sizes_, strict=True)):
        assert mark.get_xy() == (k - 0.5, first - 0.5)
        assert (mark.get_width(), mark.get_height()) == (1, size)
        first += size
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names == [str(g) for g in fitted.groups_[display.order_]]
    assert len(display.ax_.texts) == 27
    assert display.n_disagree_ == 0


def test_given_numbers():
    losses = [[1.0, 2.0], [0.5, np.nan], [3.0, 1.0]]
    display = LossMatrixDisplay(losses=losses, labels=[1, 0, 0]).plot(colorbar=False)
    assert_array_equal(display.order_, [1, 2, 0])
    assert display.n_disagree_ == 2
    assert np.ma.is_masked(display.image_.get_array()[0, 1])
    assert len(display.ax_.texts) == 5
    again = LossMatrixDisplay(losses=losses).plot(display.ax_, numbers=False)
    assert_array_equal(again.order_, [0, 1, 2])
    assert again.n_disagree_ == 0
    assert display.figure_ is again.figure_
    LossMatrixDisplay(losses=np.full((2, 2), np.inf)).plot().figure_.canvas.draw()


@pytest.mark.parametrize(("top", "middle"), [(2.0, np.sqrt(2) - 1), (2e6, 0.5)])
def test_colours_are_logarithmic_where_losses_are_far_apart(top, middle):
    display = LossMatrixDisplay(losses=[[1.0, top], [top, 1.0]]).plot()
    assert display.image_.norm(np.sqrt(top)) == pytest.approx(middle, abs=1e-9)


def test_new_clients_and_other_methods(fitted):
    groups = np.where(DATA.groups == DATA.groups[0], "newcomer", DATA.groups)
    display = LossMatrixDisplay.from_estimator(fitted, DATA.X, DATA.y, groups=groups)
    new = np.unique(groups).tolist().index("newcomer")
    assert display.labels[new] == display.losses[new].argmin()
    local = LocalModelsRegressor().fit(**ROWS)
    display = LossMatrixDisplay.from_estimator(local, **ROWS)
    assert display.losses.shape == (9, 9)
    assert display.n_disagree_ == 0
    unsupervised = CLoVE(Location(), n_clusters=2, random_state=0).fit(DATA.X, groups=DATA.groups)
    display = LossMatrixDisplay.from_estimator(unsupervised, DATA.X, groups=DATA.groups)
    assert display.losses.shape == (9, 2)


def test_clients_of_a_column_are_those_of_their_rows():
    """Not the first ones of the fit, where rows are of some of them or of others."""
    ids = np.unique(DATA.groups, return_inverse=True)[1]
    X = np.column_stack([DATA.X, ids])
    model = CLoVERegressor(n_clusters=3, group_col=-1, random_state=0).fit(X, DATA.y)
    some = ids >= 4
    display = LossMatrixDisplay.from_estimator(model, X[some], DATA.y[some])
    assert_array_equal(display.groups, np.arange(4, 9))
    assert_array_equal(display.labels, model.labels_[4:])
    X[:, -1] = 100 - ids
    display = LossMatrixDisplay.from_estimator(model, X, DATA.y)
    assert_array_equal(display.labels, model.labels_[::-1])
    without = CLoVERegressor(n_clusters=3, random_state=0).fit(DATA.X, DATA.y, groups=ids)
    one = int(np.flatnonzero(without.labels_ != without.labels_[0])[0])
    rows = ids == one
    display = LossMatrixDisplay.from_estimator(without, DATA.X[rows], DATA.y[rows])
    assert_array_equal(display.labels, without.labels_[[one]])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"losses": [1.0, 2.0]}, "losses must be an array"),
        ({"losses": [[1.0, 2.0]], "labels": [2]}, r"one cluster in 0, ..., 1"),
        ({"losses": [[1.0, 2.0]], "labels": [0, 1]}, "for each of 1 clients"),
        (
            {"losses": [[1.0], [2.0]], "groups": ["a"]},
            "groups must have one id .* 2 clients, got 1",
        ),
    ],
)
def test_what_is_no_matrix_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        LossMatrixDisplay(**parameters).plot()


# ------------------------------------------------------------------ rounds


def test_rounds_are_scored_as_the_estimator_scores(fitted):
    display = RoundsDisplay.from_estimator(fitted, **ROWS, curve="score", color="C3")
    assert len(display.score) == len(fitted.history_["ari"])
    assert display.score[-1] == pytest.approx(fitted.score(**ROWS), abs=1e-12)
    assert_array_equal(display.line_.get_ydata(), display.score)
    assert_array_equal(display.line_.get_xdata(), np.arange(len(display.score)) + 1)
    assert display.line_.get_color() == "C3"
    index = display.plot(display.ax_, curve="ari", name="index")
    assert_array_equal(index.line_.get_ydata(), fitted.history_["ari"])
    assert index.ax_.get_legend().get_texts()[1].get_text() == "index"


def test_scores_of_classifiers_with_clients_not_heard_yet():
    data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    rows = {"X": data.X, "y": data.y, "groups": data.groups}
    model = CLoVEClassifier(
        training=Training(participation=0.25), record=Record(models=True), random_state=0
    ).fit(**rows)
    assert (model.round_labels_[0] < 0).sum() == 9
    display = RoundsDisplay.from_estimator(model, **rows)
    assert display.ari is None
    assert display.ax_.get_ylabel() == "accuracy"
    assert ((display.score > 0) & (display.score <= 1)).all()
    assert display.score[-1] > display.score[0]


def test_index_alone_needs_no_rows():
    model = IFCARegressor(n_clusters=3, record=Record(true_labels=DATA.labels), random_state=0)
    model.fit(**ROWS)
    display = RoundsDisplay.from_estimator(model)
    assert_array_equal(display.line_.get_ydata(), model.history_["ari"])
    with pytest.raises(ValueError, match=r"Record\(models=True\)"):
        RoundsDisplay.from_estimator(model, **ROWS)
    with pytest.raises(ValueError, match=r"curve must be one of \['ari'\]"):
        display.plot(curve="score")


def test_the_search_for_a_number_draws_its_last_fit(few_folds):
    model = IFCARegressor(
        n_clusters="auto", n_init=1, record=Record(true_labels=DATA.labels, models=True)
    )
    display = RoundsDisplay.from_estimator(model.set_params(random_state=0).fit(**ROWS), **ROWS)
    assert len(display.ari) == len(display.score) < len(model.history_["ari"])
    assert display.ari[-1] == 1.0
