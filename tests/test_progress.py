"""Progress of fits: what is printed, and what scikit-learn's callbacks are told and may end."""

import logging
import pickle
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from grouped import grouped
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from trials import THOROUGH

import skcfl
from skcfl import _option_objects, _progress
from skcfl.base import BaseFederated
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.exceptions import FederationError
from skcfl.federation import InProcessFederation
from skcfl.model_selection import grouped_scorer
from skcfl.models import LinearModel
from skcfl.testing import StrictFederation

try:
    from sklearn import callback
except ImportError:  # scikit-learn before 1.9
    callback = None
needs_callbacks = pytest.mark.skipif(callback is None, reason="this scikit-learn has no callbacks")

CLASSES = make_clustered_classification(4, 2, n_samples=12, n_features=2, random_state=0)
NUMBERS = make_clustered_regression(4, 2, n_samples=12, n_features=2, random_state=0)

# Twins share all code that tells: one class a method.
METHODS = [
    *("CFL", "CLoVE", "ConvexClusteredFL", "ConvexClusteredFLRegressor", "ConvexClustering"),
    *("Ditto", "FPFC", "FPFCClassifier", "FedALA", "FedAvg", "FedEM", "FedPACClassifier"),
    *("FedProtoClassifier", "FedRep", "FeSEM", "FlexCFL", "GTV", "GTVRegressor", "IFCA", "KFED"),
    *("LocalModels", "OneShot", "OracleClusters", "PACFL", "PFedMe", "PartialPooling"),
    *("PerFedAvg", "RobustClusteredFL"),
]
# One of each loop that tells: of rounds, of solvers, of pooling, of points, of rows.
SPOKEN = [
    *("CFL", "ConvexClusteredFL", "ConvexClusteredFLRegressor", "ConvexClustering", "Ditto"),
    *("FPFCClassifier", "FedALA", "FedEM", "FedProtoClassifier", "GTV", "IFCA", "KFED"),
    *("LocalModels", "OneShot", "PartialPooling"),
]
# Those that are left to search.
SEARCHED = {"IFCA", "PartialPooling", "ConvexClusteredFL", "Ditto"}
# Those that search by folds.
BY_FOLDS = {"ConvexClusteredFLRegressor", "FPFCClassifier", "GTVRegressor"}
BY_CV, BIC = skcfl.LamSearch(cv=2, n_lams=2), skcfl.LamSearch(criterion="bic", n_lams=3)
# A method of each kind, of which a run prints more.
LOUDER = {"ConvexClusteredFL", "FedALA", "IFCA", "PartialPooling"}
TASKS = {
    *("fit", "n_clusters", "lam", "candidate", "starts", "start", "polishing", "polishing step"),
    *("polished starts", "polished start"),
    *("rounds", "round", "iterations", "iteration", "evaluations", "evaluation"),
    *("exchanges", "exchange", "quasi-Newton steps", "step", "folds", "fold"),
    "search of lam, folds",
    "search of personal_steps, folds",
}


def make(name, **parameters):
    """An estimator, rows and what fit takes of them."""
    cls = getattr(skcfl, name)
    defaults = cls().get_params(deep=False)
    short = {"alpha": 0.01}  # searches of it tell nothing
    if name in BY_FOLDS:
        short["search"] = BY_CV
    if name == "ConvexClusteredFL":
        short["search"] = skcfl.LamSearch(n_lams=2)
    short |= {"n_init": 2} if name in SEARCHED else {}
    if name not in SEARCHED | BY_FOLDS:
        short |= {"n_clusters": 2, "lam": 0.1}
    if name in ("FedProtoClassifier", "FedPACClassifier"):
        short["hidden_layer_sizes"] = (3,)
    if defaults.get("max_iter", 0) == "auto":
        short["max_iter"] = 30
    if name == "OracleClusters":
        short["labels"] = [0, 0, 1, 1]
    parameters = grouped(cls, random_state=0, **{**short, **parameters})
    estimator = cls(**{key: value for key, value in parameters.items() if key in defaults})
    data = CLASSES if "Classifier" in name else NUMBERS
    if name == "ConvexClustering":
        return estimator, (data.X,), {}
    return estimator, (data.X, data.y), {"groups": data.groups}


def fitted(name, *callbacks, **parameters):
    estimator, rows, more = make(name, **parameters)
    if callbacks and callback is not None:
        estimator.set_callbacks(*callbacks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The best lam")
        return estimator.fit(*rows, **more)


def assert_same(one, other):
    """Two fits with the same outcome."""
    for name in ("labels_", "params_", "cluster_centers_", "floats_up_", "calls_"):
        if hasattr(one, name):
            assert_array_equal(getattr(one, name), getattr(other, name))


class Recorder:
    """A callback that writes the tree of tasks down."""

    def __init__(self):
        self.open, self.tasks, self.models, self.given = [], [], [], []

    def setup(self, estimator, context):
        self.tasks.clear()

    def teardown(self, estimator, context):
        assert not self.open

    def on_fit_task_begin(self, estimator, context):
        assert context.parent is (self.open[-1] if self.open else None)
        self.open.append(context)

    def on_fit_task_end(self, estimator, context, *, X, y, metadata, fitted_estimator):
        assert self.open.pop() is context
        self.tasks.append(context.task_name)
        self.given.append((X, y, metadata))
        if fitted_estimator is not None:
            self.models.append((context.task_name, fitted_estimator))


class Stop(Recorder):
    """A callback that ends what it is told of after a number of tasks of a name."""

    def __init__(self, task, after):
        super().__init__()
        self.task, self.after = task, after

    def on_fit_task_end(self, estimator, context, *, X, y, metadata, fitted_estimator):
        about = {"X": X, "y": y, "metadata": metadata, "fitted_estimator": fitted_estimator}
        super().on_fit_task_end(estimator, context, **about)
        return context.task_name == self.task and self.tasks.count(self.task) >= self.after


def test_every_method_is_here():
    estimators = {name for name in skcfl.__all__ if hasattr(getattr(skcfl, name), "fit")}
    methods = {re.sub("(Classifier|Regressor)?$", "", name) for name in estimators}
    assert methods == {re.sub("(Classifier|Regressor)?$", "", name) for name in METHODS}


@pytest.mark.parametrize("name", METHODS if THOROUGH else SPOKEN)
def test_what_is_printed_and_told(name, capsys):
    """Nothing by default; lines of one form; callbacks see a tree; the fit is the same."""
    plain = fitted(name)
    assert capsys.readouterr().out == ""
    recorder = Recorder()
    told = fitted(name, recorder, verbose=1)
    assert_same(plain, told)
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(rf"\[{name}\] \S.* \([^()]*(s|min)( left)?\)$", line) for line in lines)
    assert re.match(rf"\[{name}\] fitted: \d+ clusters? \(", lines[-1])
    assert len(lines) <= 25
    if THOROUGH or name in LOUDER:
        assert_same(plain, fitted(name, verbose=2))
        out = capsys.readouterr().out
        more = out.splitlines()
        assert all(line.startswith(f"[{name}] ") for line in more)
        assert len(more) >= len(lines)
        if name == "FedALA":
            rounds = re.findall(r"\] round (\d+) of at most 30: objective", out)
            assert [int(k) for k in rounds] == list(range(1, plain.n_iter_ + 1))
    if callback is None:
        return
    # The tree of tasks: whatever has begun has ended, and the root last.
    assert set(recorder.tasks) <= TASKS
    assert recorder.tasks[-1] == "fit" and recorder.tasks.count("fit") == 1
    _, rows, groups = make(name)
    X, y, metadata = recorder.given[-1]
    if name != "KFED":
        assert X is rows[0] and y is (rows[1] if len(rows) > 1 else None)
    assert metadata is None if not groups else metadata["groups"] is groups["groups"]
    # The last model is the one that was fitted.
    assert recorder.models[-1][0] == "fit"
    assert_array_equal(recorder.models[-1][1].labels_, plain.labels_)
    left = {"_callback_fit_ctx", "_skl_callbacks_to_teardown", "_parent_callback_ctx"}
    assert not left & vars(told).keys()


@needs_callbacks
@pytest.mark.parametrize(
    "name",
    [
        *("IFCA", "CFL", "OneShot", "FPFC", "RobustClusteredFL", "ConvexClusteredFL"),
    ],
)
def test_models_between_rounds_predict(name):
    """Callbacks may score estimators as if the fit had ended after a round."""
    recorder = Recorder()
    more = {"n_clusters": 2, "lam": 0.05, "refit": False, "n_init": 1}
    if name != "FPFC":
        more["polish"] = False
    if name == "RobustClusteredFL":  # whose geometric median of so few clients is one of them
        more["aggregation"] = "median"
    model = fitted(name, recorder, max_iter=30, tol=1e-8, **more)
    models = [some for what, some in recorder.models if what in ("round", "iteration")]
    assert len(models) >= 2
    for some in models:
        assert isinstance(some, type(model)) and some is not model
        assert np.isfinite(some.predict(NUMBERS.X, groups=NUMBERS.groups)).all()
    assert_array_equal(models[-1].params_, model.params_)
    assert_array_equal(models[-1].labels_, model.labels_)
    assert not np.array_equal(models[0].params_, model.params_)


@needs_callbacks
@pytest.mark.parametrize("name", ["Ditto", "PFedMe", "FedRep", "FedEM", "PartialPooling"])
def test_rounds_without_models_say_so(name):
    """Where clients get their models after the rounds, there is none between them."""
    recorder = Recorder()
    fitted(name, recorder, n_clusters=2, lam=1.0)
    assert {what for what, _ in recorder.models} == {"fit"}


STOPPABLE = [
    ("FedAvg", "round", {"polish": False}),
    ("PFedMe", "round", {"lam": 1.0}),
    ("FedEM", "round", {"n_clusters": 1}),
    ("LocalModelsClassifier", "round", {"hidden_layer_sizes": (3,), "max_iter": 30}),
    ("FPFC", "round", {"lam": 0.1}),
    ("ConvexClusteredFL", "iteration", {"lam": 0.05}),
    ("ConvexClusteredFL", "evaluation", {"lam": 0.05, "penalty": "squared_l2"}),
    ("ConvexClusteredFL", "iteration", {"lam": 0.05, "solver": "primal_dual"}),
    ("ConvexClusteredFL", "round", {"lam": 0.05, "solver": "pdmm"}),
    ("GTVClassifier", "iteration", {"lam": 0.05, "hidden_layer_sizes": (3,), "max_iter": 60}),
    ("PartialPooling", "exchange", {"n_clusters": 1, "tol": 1e-12}),
    ("ConvexClustering", "iteration", {"lam": 0.05, "loss": "huber"}),
]


@needs_callbacks
@pytest.mark.parametrize("name, task, more", STOPPABLE)
def test_a_callback_ends_rounds(name, task, more):
    """As max_iter does, but nobody is warned; what was reached can be used."""
    hard = {"tol": 1e-13, "max_iter": 30, **more}
    estimator, rows, groups = make(name, **hard)
    estimator.set_callbacks(Stop(task, 1)).fit(*rows, **groups)  # warnings are errors
    assert len(estimator.history_["objective"]) < len(fitted(name, **hard).history_["objective"])
    assert np.isfinite(estimator.objective_)
    estimator.predict(rows[0], **groups)


@needs_callbacks
def test_only_a_callback_silences_the_warning():
    estimator, rows, groups = make("FedAvg", max_iter=1, tol=1e-13, polish=False)
    with pytest.warns(ConvergenceWarning):
        estimator.set_callbacks(Recorder()).fit(*rows, **groups)


@needs_callbacks
@pytest.mark.parametrize(
    "name, task, more",
    [
        ("IFCA", "candidate", {}),
        ("IFCA", "start", {"n_clusters": 2, "n_init": 5}),
        ("FedEM", "start", {"n_clusters": 2, "n_init": 5}),
        ("ConvexClusteredFL", "candidate", {"lam": "auto", "search": BY_CV}),
        ("ConvexClusteredFL", "candidate", {"lam": "auto", "search": BIC}),
        ("FPFC", "candidate", {"lam": "auto", "search": BIC}),
        ("PartialPooling", "candidate", {}),
    ],
)
def test_a_callback_ends_searches(name, task, more):
    """The best of what was tried is fitted."""
    whole, part = Recorder(), Stop(task, 2)
    fitted(name, whole, **more)
    model = fitted(name, part, **more)
    assert part.tasks.count(task) == 2 < whole.tasks.count(task)
    assert np.isfinite(model.objective_)


def test_progress_of_a_long_stage_is_told_on_the_way(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "PATIENCE", -1.0)
    fitted("IFCA", n_clusters=2, n_init=2, verbose=1)
    out = capsys.readouterr().out
    assert re.search(r"\[IFCA\] start 1 of 2, round \d+ of at most 30: objective \S+, ", out)
    assert re.search(r"round 3 of at most 30: .* \(\S+ s, at most \S+ s left\)", out)
    assert re.search(r"start 1 of 2: objective \S+ \(\S+ s, about \S+ s left\)", out)


def test_stages_of_trees_are_counted(capsys):
    """Five trees are a stage: as many stages were announced as there are trees."""
    X, y, groups = NUMBERS.X, NUMBERS.y, NUMBERS.groups
    model = skcfl.PartialPoolingRegressor(1, basis=skcfl.TreeBasis(7), verbose=1)
    model.fit(X, y, groups=groups)
    stages = re.findall(r"stage (\d+) of at most (\d+)", capsys.readouterr().out)
    assert stages == [("1", "2"), ("2", "2")]


def test_printing_does_not_depend_on_threads(capsys):
    """Folds that are judged in threads are told of in their order, and none of their rounds."""
    printed = []
    for n_jobs in (1, 2):
        fitted("ConvexClusteredFL", graph="auto", verbose=2, n_jobs=n_jobs)
        lines = capsys.readouterr().out.splitlines()
        printed.append([re.sub(r" \([^()]*\)$", "", line) for line in lines])
    assert printed[0] == printed[1] and len(printed[0]) > 10


@pytest.mark.parametrize(
    "seconds, text",
    [(0.04, "0.04 s"), (9.94, "9.9 s"), (61.3, "61 s"), (600, "10 min"), (7260, "2 h 1 min")],
)
def test_seconds(seconds, text):
    assert _progress._seconds(seconds) == text


@needs_callbacks
def test_a_federation_has_no_rows_for_callbacks():
    """Callbacks are handed what fit was: of a federation, nothing."""
    federation = StrictFederation(InProcessFederation(NUMBERS.X, NUMBERS.y, NUMBERS.groups))
    recorder, estimator = Recorder(), make("IFCA", n_clusters=2)[0]
    estimator.set_callbacks(recorder).fit_federation(federation)
    assert set(map(str, recorder.given)) == {"(None, None, None)"}
    assert any(what == "round" for what, _ in recorder.models)
    assert_same(fitted("IFCA", n_clusters=2), estimator)


@needs_callbacks
def test_a_fit_that_fails_leaves_nothing_behind(capsys):
    estimator, rows, groups = make("FedAvg", verbose=1, step_size=1e60, polish=False)
    recorder = Recorder()
    recorder.teardown = lambda **told: None  # tasks stay open
    before = dict(vars(estimator.set_callbacks(recorder)))
    with pytest.raises((ValueError, FederationError)):
        estimator.fit(*rows, **groups)
    assert vars(estimator) == before
    assert _progress._listener.get() is None
    capsys.readouterr()


@needs_callbacks
def test_callbacks_go_with_clones_and_pickles():
    recorder = Recorder()
    estimator, rows, groups = make("IFCA", n_clusters=2)
    twin = clone(estimator.set_callbacks(recorder))
    twin.fit(*rows, **groups)
    assert recorder.tasks
    recorder.open = recorder.models = recorder.given = []
    again = pickle.loads(pickle.dumps(twin))
    assert_array_equal(again.labels_, twin.labels_)


@needs_callbacks
def test_scores_by_round():
    """scikit-learn's monitor scores with the ids in a column of X, or handed to a scorer."""
    table = np.column_stack([NUMBERS.X, NUMBERS.groups])
    monitor = callback.ScoringMonitor(scoring="r2")
    estimator = make("FedAvg", group_col=-1, polish=False)[0]
    estimator.set_callbacks(monitor).fit(table, NUMBERS.y)
    log = monitor.get_logs().data
    rounds = [row["r2"] for row in log if row["task_name"] == "round"]
    assert len(rounds) == estimator.n_iter_ and rounds[-1] > rounds[0]
    assert rounds[-1] == pytest.approx(estimator.score(table, NUMBERS.y))

    monitor = callback.ScoringMonitor(scoring={"r2": grouped_scorer("r2")})
    fitted("FedAvg", monitor, polish=False)
    other = [row["r2"] for row in monitor.get_logs().data if row["task_name"] == "round"]
    assert_allclose(other, rounds)


@needs_callbacks
def test_a_search_of_scikit_learn_tells_its_callbacks(capsys):
    """Callbacks of a meta-estimator reach the fits inside, whose tasks are part of its tree."""
    pytest.importorskip("rich")
    table = np.column_stack([NUMBERS.X, NUMBERS.groups])
    even, odd = np.arange(0, 48, 2), np.arange(1, 48, 2)
    model = skcfl.IFCA(LinearModel(), group_col=-1, random_state=0)
    folds = [(even, odd), (odd, even)]
    search = GridSearchCV(model, {"n_clusters": [1, 2]}, cv=folds, scoring="r2")
    search.set_callbacks(callback.ProgressBar()).fit(table, NUMBERS.y)
    out = capsys.readouterr().out
    assert "IFCA - starts" in out and "IFCA - rounds" in out and "100%" in out
    assert search.best_params_ == {"n_clusters": 2}


OLDER = """
import sys
import numpy as np
import sklearn.ensemble, sklearn.model_selection  # which know them themselves
sys.modules["sklearn.callback"] = None
import skcfl
rows = np.random.default_rng(0).standard_normal((40, 2))
model = skcfl.IFCARegressor(n_clusters=2, random_state=0, verbose=1)
model.fit(rows, rows @ [1.0, 2.0], groups=np.repeat(np.arange(4), 10))
print(hasattr(model, "set_callbacks"), model.labels_.shape)
"""


def test_without_callbacks_all_else_works():
    """Before scikit-learn 1.9 there are none."""
    command = [sys.executable, "-c", OLDER]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False (4,)"
    assert "[IFCARegressor] fitted" in done.stdout


# ------------------------------------------------------------------------ HTML representation


def test_links_of_the_html_representation(monkeypatch):
    """To the site that the project names, and nowhere without one."""
    model = skcfl.IFCA(LinearModel())
    site = "https://docs.invalid/skcfl"
    monkeypatch.setattr(_option_objects, "documentation_site", lambda: None)
    assert model._get_doc_link() == "" and "href" not in model._repr_html_()
    monkeypatch.setattr(_option_objects, "documentation_site", lambda: site)
    assert model._get_doc_link() == f"{site}/generated/skcfl.IFCA.html"
    page = f"{site}/generated/skcfl.models.LinearModel.html"
    assert LinearModel()._get_doc_link() == page and page in LinearModel()._repr_html_()

    class Own(skcfl.IFCA):
        """Of somebody else, who has no page here."""

    assert issubclass(Own, BaseFederated) and Own()._get_doc_link() == ""


SITE, CODE = "Documentation, https://a.invalid/b/", "Source, https://code.invalid"


@pytest.mark.parametrize(
    ("urls", "site"), [(None, None), ([CODE], None), ([CODE, SITE], "https://a.invalid/b")]
)
def test_the_site_is_one_of_the_projects_urls(monkeypatch, urls, site):
    metadata = SimpleNamespace(get_all=lambda name: urls)
    monkeypatch.setattr(_option_objects.metadata, "metadata", lambda name: metadata)
    assert _option_objects.documentation_site.__wrapped__() == site


def test_a_fit_is_in_the_log(caplog, capsys):
    """Stages with their time, objective, exchanges, bytes and who answers; nothing is printed."""
    model = skcfl.IFCARegressor(n_clusters=2, n_init=2, random_state=0)
    quiet = clone(model).fit(NUMBERS.X, NUMBERS.y, groups=NUMBERS.groups)
    assert not caplog.records
    with caplog.at_level(logging.INFO, "skcfl"):
        model.fit(NUMBERS.X, NUMBERS.y, groups=NUMBERS.groups)
    assert_same(quiet, model)
    assert capsys.readouterr().out == ""
    lines = [record.getMessage() for record in caplog.records if record.name == "skcfl.fit"]
    assert all(line.startswith("IFCARegressor: ") for line in lines)
    n = len(model.groups_)
    assert re.search(
        rf"polishing: \d+ of at most \d+, objective [\d.]+.* s\); \d+ exchanges, [\d.]+ kB up, "
        rf"[\d.]+ kB down, {n} of {n} clients answer$",
        lines[-2],
    )
    assert re.search(rf"fitted: 2 clusters \(.*\); {model.calls_} exchanges, ", lines[-1])
    few = len(lines)
    with caplog.at_level(logging.DEBUG, "skcfl"):
        model.fit(NUMBERS.X, NUMBERS.y, groups=NUMBERS.groups)
    rounds = [r for r in caplog.records[few:] if ", round 2 of" in r.getMessage()]
    assert len(rounds) == 2 and {record.levelno for record in rounds} == {logging.DEBUG}
