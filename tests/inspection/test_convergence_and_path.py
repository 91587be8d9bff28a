"""Pictures: what is drawn are the numbers of the fit."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skcfl import ConvexClusteredFLRegressor, ConvexClustering, FedAvgRegressor, IFCARegressor
from skcfl.datasets import make_clustered_regression
from skcfl.graphs import chain_graph
from skcfl.inspection import (
    ClusterPathDisplay,
    ClusterStability,
    ClusterStabilityDisplay,
    ConvergenceDisplay,
    EffectDisplay,
    EmpiricalGraphDisplay,
    LossMatrixDisplay,
    RandomEffectsDisplay,
    SuspicionDisplay,
)
from skcfl.model_selection import lam_path
from skcfl.rounds.loop import relative_change

plt = pytest.importorskip("matplotlib.pyplot")


DATA = make_clustered_regression(n_clients=8, n_clusters=2, n_samples=20, random_state=0)
ROWS = {"X": DATA.X, "y": DATA.y, "groups": DATA.groups}


@pytest.fixture(scope="module")
def fitted():
    return ConvexClusteredFLRegressor(0.1).fit(**ROWS)


# Five clients over lam: two of them fuse, part, and fuse again; then all do.
PATH = SimpleNamespace(
    lams=np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
    labels=np.array(
        [
            [0, 1, 2, 3, 4],
            [0, 0, 1, 2, 3],
            [0, 1, 2, 3, 3],
            [1, 1, 0, 0, 0],
            [0, 0, 1, 1, 1],
            [0, 0, 0, 0, 0],
        ]
    ),
)
_CENTRES = np.random.RandomState(0).standard_normal((6, 5, 4))
PATH.params = np.array([c[labels] for c, labels in zip(_CENTRES, PATH.labels, strict=True)])


def with_path(**changes):
    return SimpleNamespace(**{**vars(PATH), **changes})


# ------------------------------------------------------------------------- names

# Bad TeX, a label that matplotlib hides, and two that differ at their end.
NAMES = [r"a$\foo$", "_b$", *(f"Hospital {'of the north ' * 6}{k}" for k in (1, 2)), "e"]
SHOWN = [r"a\$\foo\$", r"_b\$", "Hospital of th… of the north 1"]
FIVE, LINE = np.arange(5.0), {"values": [0, 1], "effect": [0, 1], "std": [1, 1]}


@pytest.mark.parametrize(
    "draw",
    [
        lambda: ClusterPathDisplay.from_path(PATH, groups=NAMES, kind="tree"),
        lambda: RandomEffectsDisplay(values=FIVE, std=FIVE, groups=NAMES, name=NAMES[0]).plot(),
        lambda: LossMatrixDisplay(losses=np.eye(5), groups=NAMES).plot(),
        lambda: SuspicionDisplay(suspicion=2 + FIVE, labels=[0] * 5, groups=NAMES).plot(),
        lambda: ClusterStabilityDisplay(
            stability=ClusterStability(NAMES, np.zeros(5, int), FIVE, FIVE, np.eye(5))
        ).plot(),
        lambda: EffectDisplay(
            **LINE, client_effects=np.eye(5, 2), groups=NAMES, name=NAMES[0]
        ).plot(),
        lambda: EmpiricalGraphDisplay(
            graph=chain_graph(5), labels=[0] * 5, loads=[0] * 4, positions=PATH.params[0, :, :2],
            groups=NAMES,
        ).plot(names=True),
    ],
)  # fmt: skip
def test_names_are_written_as_they_are(draw):
    """They were read as formulas, cut off, or left out of the legend."""
    figure = draw().figure_
    figure.canvas.draw()
    texts = {text.get_text() for text in figure.findobj(plt.Text)}
    assert texts >= {*SHOWN, SHOWN[2].replace("1", "2")}
    assert NAMES[0] not in texts


def test_lines_of_one_point_are_seen():
    """They have no length."""
    history = {"round": [1], "gap": [0.5]}
    one = with_path(
        **{**{key: value[:1] for key, value in vars(PATH).items()}, "lams": np.zeros(1)}
    )
    assert ConvergenceDisplay(history=history).plot().line_.get_marker() == "o"
    lines = ClusterPathDisplay.from_path(one, kind="tree").lines_
    assert {line.get_marker() for line in lines} == {"o"}
    more = ConvergenceDisplay(history={"gap": [0.5, 0.1]}).plot()
    assert more.line_.get_marker() == "None"


# ------------------------------------------------------------------ cluster path


def test_colours_are_those_of_the_partition_that_holds_longest():
    """Labels with other numbers are the same partition; {0, 1}, {2, 3, 4} holds at two lams."""
    figure, axes = plt.subplots(1, 2)
    display = ClusterPathDisplay.from_path(PATH, ax=axes[0], linewidth=3)
    assert display.ax_ is axes[0] and display.figure_ is figure
    assert {line.get_linewidth() for line in display.lines_} == {3.0}
    assert display.plot(axes[1], color="black").ax_ is axes[1]
    assert {line.get_color() for line in display.lines_} == {"black"}
    display.plot()
    assert_array_equal(display.partition_, [1, 1, 0, 0, 0])
    assert display.interval_ == (8.0, 16.0)
    assert [line.get_color() for line in display.lines_] == ["C1", "C1", "C0", "C0", "C0"]


def test_given_partition_and_lam():
    options = {"partition": list("abbbb"), "lam": 3.0, "kind": "n_clusters"}
    display = ClusterPathDisplay.from_path(PATH, **options)
    assert_array_equal(display.partition_, [1, 0, 0, 0, 0])
    assert display.interval_ is None  # no lam of the path has it
    mark = display.ax_.lines[-1]
    assert_array_equal(mark.get_xdata(), [3.0, 3.0])
    assert not display.ax_.patches
    display = ClusterPathDisplay.from_path(PATH, kind="n_clusters")
    (line,), ax = display.lines_, display.ax_
    assert_array_equal(line.get_data(), [PATH.lams, [5, 4, 4, 2, 2, 1]])
    assert_array_equal(display.n_clusters_, [5, 4, 4, 2, 2, 1])
    labels = (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale())
    assert labels == ("lam", "number of models", "log")
    assert ax.patches[0].get_x() == ax.patches[0].get_width() == 8.0


def test_models_are_projected():
    """Four parameters that vary in a plane are drawn without loss; distances are kept."""
    rng = np.random.RandomState(1)
    flat = rng.standard_normal((6, 5, 2))
    basis = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    display = ClusterPathDisplay.from_path(with_path(params=flat @ basis.T + 3.0))
    assert display.points_.shape == (6, 5, 2)
    for i, line in enumerate(display.lines_):
        assert_array_equal(line.get_xydata(), display.points_[:, i])
    drawn = np.linalg.norm(np.diff(display.points_.reshape(-1, 2), axis=0), axis=1)
    assert_allclose(drawn, np.linalg.norm(np.diff(flat.reshape(-1, 2), axis=0), axis=1))
    assert "direction 1" in display.ax_.get_xlabel()
    # Two parameters or one are drawn as they are, one over lam.
    params = PATH.params[..., :2]
    display = ClusterPathDisplay.from_path(with_path(params=params))
    assert_array_equal(display.lines_[3].get_xydata(), params[:, 3])
    display = ClusterPathDisplay.from_path(with_path(params=params[..., :1]))
    assert_array_equal(display.lines_[3].get_data(), [PATH.lams, params[:, 3, 0]])


def test_tree_lines_run_together_where_clients_share_a_model():
    """In no colour where several do; all clients are one cluster in the end."""
    display = ClusterPathDisplay.from_path(PATH, kind="tree", groups=list("vwxyz"))
    assert len(display.lines_) == 5
    heights = np.array([line.get_ydata()[::2] for line in display.lines_]).T
    assert heights.shape == PATH.labels.shape
    for at, labels in zip(heights, PATH.labels, strict=True):
        same = labels[:, None] == labels
        assert_array_equal(np.isclose(at[:, None], at), same)
    # The clients that are together at the end are neighbours at the beginning.
    assert set(heights[0][[0, 1]]) in ({0, 1}, {3, 4})
    names = [tick.get_text() for tick in display.ax_.get_yticklabels()]
    leaves = np.argsort(heights[0])
    assert names == [list("vwxyz")[i] for i in leaves]
    x = display.lines_[0].get_xdata()
    assert x[0] == 1.0 and x[-1] == 32.0
    assert_allclose(x[1], np.sqrt(2.0))
    extra = [line for line in display.ax_.lines if line not in display.lines_]
    assert len(extra) == 5 and np.isfinite(extra[0].get_ydata()).sum() == 2


def test_lam_zero_has_a_place():
    path = with_path(lams=np.array([0.0, 1.0, 2.0, 4.0, 8.0, 16.0]))
    display = ClusterPathDisplay.from_path(path, kind="n_clusters")
    assert display.ax_.get_xscale() == "symlog"
    assert display.lines_[0].get_xdata()[0] == 0.0
    tree = ClusterPathDisplay.from_path(path, kind="tree")
    assert tree.lines_[0].get_xdata()[0] == 0.5


def test_clusters_beyond_ten_are_grey():
    n = 14
    labels = np.stack([np.arange(n), np.maximum(np.arange(n) - 1, 0), np.zeros(n, dtype=int)])
    params = np.random.RandomState(0).standard_normal((3, n, 3))
    path = SimpleNamespace(lams=[1.0, 2.0, 3.0], params=params, labels=labels)
    display = ClusterPathDisplay.from_path(path)
    colours = [line.get_color() for line in display.lines_]
    assert len(set(colours)) == 11
    assert colours.count("0.65") == 3


def test_path_of_an_estimator(fitted):
    options = {**ROWS, "n_lams": 6}
    display = ClusterPathDisplay.from_estimator(fitted, **options, kind="n_clusters")
    path = lam_path(fitted, **options)
    assert_allclose(display.lines_[0].get_data(), [path.lams, path.n_clusters])
    assert_array_equal(display.partition_, fitted.labels_)
    assert display.lam == fitted.lam_ == 0.1
    names = display.plot(kind="tree").ax_.get_yticklabels()
    assert sorted(tick.get_text() for tick in names) == fitted.groups_.tolist()
    weights = np.random.RandomState(0).uniform(size=len(DATA.y))
    display = ClusterPathDisplay.from_estimator(fitted, **options, sample_weight=weights)
    assert_array_equal(display.params, lam_path(fitted, **options, sample_weight=weights).params)
    # As many other clients have other clusters.
    others = options | {"groups": [f"new {client}" for client in DATA.groups]}
    display = ClusterPathDisplay.from_estimator(fitted, **others)
    assert display.partition is None and display.lam is None


def test_path_of_points():
    points = np.random.RandomState(0).standard_normal((6, 2))
    fit = ConvexClustering(0.1).fit(points)
    display = ClusterPathDisplay.from_estimator(fit, points, n_lams=3)
    assert_array_equal(display.partition, fit.labels_)
    assert display.lam == 0.1
    assert ClusterPathDisplay.from_estimator(fit, points[1:], n_lams=3).lam is None


# ------------------------------------------------------------------ convergence


def test_gap_by_round_and_by_bytes(fitted):
    display = ConvergenceDisplay.from_estimator(fitted)
    history, ax = fitted.history_, display.ax_
    assert_array_equal(display.line_.get_data(), [history["round"], history["gap"]])
    labels = (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale())
    assert labels == ("round", "duality gap", "log")
    second = ConvergenceDisplay.from_estimator(fitted, name="b", ax=ax)
    assert second.ax_ is ax
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["ConvexClusteredFLRegressor", "b"]
    display = ConvergenceDisplay.from_estimator(fitted, x="bytes", name="mine", color="C3")
    sent = np.cumsum(history["floats_up"] + history["floats_down"]) * 8
    assert_array_equal(display.line_.get_xdata(), sent)
    assert (display.line_.get_color(), display.line_.get_label()) == ("C3", "mine")
    assert display.ax_.xaxis.get_major_formatter()(2e6) == "2 MB"
    assert display.plot(x="round", y="bytes").ax_.get_yscale() == "linear"


def test_methods_without_a_gap_and_points():
    ifca = IFCARegressor(2, random_state=0).fit(**ROWS)
    display = ConvergenceDisplay.from_estimator(ifca)
    column = "change" if "change" in ifca.history_ else "objective"
    rounds = np.arange(1, ifca.n_iter_ + 1)
    assert_array_equal(display.line_.get_data(), [rounds, ifca.history_[column]])
    model = ConvexClustering(0.1).fit(np.random.default_rng(0).normal(size=(20, 2)))
    display = ConvergenceDisplay.from_estimator(model, x="round", y="gap")
    assert_array_equal(display.line_.get_xdata(), model.history_["round"])


def test_a_change_from_zero_is_infinite_and_not_drawn():
    model = FedAvgRegressor().fit(**ROWS)
    change = model.history_["change"]
    assert change[0] == np.inf
    assert np.isfinite(change[1:]).all()
    _, high = ConvergenceDisplay.from_estimator(model).ax_.get_ylim()
    assert high < 100 * change[1:].max()
    zero, one = np.zeros((2, 3)), np.array([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]])
    assert relative_change(zero, zero) == 0.0
    assert relative_change(zero, one) == np.inf
    assert relative_change(one, zero) == 1.0
    assert relative_change(1e-60 * one, one) == np.inf
    assert relative_change(1e-60 * one, zero) == 0.0
    assert np.isnan(relative_change(one, one * np.nan))


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": with_path(params=PATH.params[:, :4])}, "shapes"),
        ({"path": with_path(labels=PATH.labels[:3])}, "shapes"),
        ({"path": with_path(lams=PATH.lams[::-1])}, "ascending"),
        ({"kind": "dendrogram"}, "kind must be one of .*'tree'.*got 'dendrogram'"),
        ({"partition": [0, 1]}, r"must have one label per client, shape \(5,\)"),
    ],
)
def test_wrong_paths_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ClusterPathDisplay.from_path(**{"path": PATH, **given})


def test_wrong_histories_are_refused(fitted):
    with pytest.raises(ValueError, match="y must be a column of the history.*got 'loss'"):
        ConvergenceDisplay.from_estimator(fitted, y="loss")
    with pytest.raises(ValueError, match="history is empty"):
        ConvergenceDisplay(history={}).plot()


GRAPH = EmpiricalGraphDisplay(
    graph=chain_graph(2), labels=[0, 0], loads=[0.5], positions=np.zeros((2, 2))
)


@pytest.mark.parametrize(
    "draw",
    [
        partial(ClusterPathDisplay.from_path, PATH),
        ConvergenceDisplay(history={"gap": [1.0]}).plot,
        GRAPH.plot,
    ],
)
def test_without_matplotlib(draw, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"Display.plot needs matplotlib.*skcfl\[plot\]"):
        draw()
