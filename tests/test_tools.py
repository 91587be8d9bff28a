"""How groups travel through scikit-learn's tools: the table of the user guide, cell by cell.

Each row of that table is tested in its three columns: groups passed with metadata routing off and
on, and ids in a column of X. What works gives the very numbers that direct calls with groups give;
what cannot work fails as the guide says, and these tests notice when a new scikit-learn mends it.
"""

from contextlib import nullcontext
from itertools import product

import numpy as np
import pandas as pd
import pytest
import sklearn
from joblib import parallel_config
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import (
    BaggingRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    KFold,
    RandomizedSearchCV,
    cross_val_predict,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from trials import some

from skcfl import (
    IFCA,
    IFCAClassifier,
    LocalModelsClassifier,
    LocalModelsRegressor,
    Training,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.exceptions import SingleClientWarning
from skcfl.model_selection import ClientKFold, grouped_scorer
from skcfl.models import LinearModel

# the messages that users meet
NEEDS_GROUPS = r"needs to know the client of each row: pass groups=.*set group_col before fit"
NO_GROUPS_REACHED = "got no groups, but .* asks for them"
SCORING_FAILED = "Scoring failed"
ROUTING_ONLY = "only supported if enable_metadata_routing=True"
N_FEATURES = 3


class Case:
    """An estimator, its data with and without ids in a column, and what is searched."""

    def __init__(self, estimator, data, grid, metric, scoring):
        self.estimator, self.known = estimator, {}
        self.X, self.y, self.groups = data.X, data.y, data.groups
        names = [f"x{j}" for j in range(N_FEATURES)]
        self.frame = pd.DataFrame(self.X, columns=names).assign(site=self.groups)
        self.grid, self.metric, self.scoring = grid, metric, scoring
        self.cv = ClientKFold(3, random_state=0)
        self.column_cv = ClientKFold(3, group_col="site", random_state=0)
        self.plain_cv = KFold(3, shuffle=True, random_state=0)

    @property
    def by_column(self):
        return clone(self.estimator).set_params(group_col="site")

    @property
    def candidates(self):
        (name, values), *_ = self.grid.items()
        return [clone(self.estimator).set_params(**{name: value}) for value in values]

    def fitted(self, estimator=None, rows=slice(None)):
        estimator = clone(self.estimator if estimator is None else estimator)
        return estimator.fit(self.X[rows], self.y[rows], groups=self.groups[rows])

    def pooled(self, estimator):
        """A fit without groups: what a tool makes of it that drops them."""
        with pytest.warns(SingleClientWarning):
            return clone(estimator).fit(self.X, self.y)

    def scores(self, estimator):
        """Scores of the folds by direct calls with groups, the same in all tests."""
        if repr(estimator) not in self.known:
            scores = []
            for train, test in self.cv.split(self.X, self.y, self.groups):
                fit = self.fitted(estimator, train)
                answer = fit.predict(self.X[test], groups=self.groups[test])
                scores.append(self.metric(self.y[test], answer))
            self.known[repr(estimator)] = np.array(scores)
        return self.known[repr(estimator)]

    def search_scores(self):
        return np.array([self.scores(candidate).mean() for candidate in self.candidates])


def classification(estimator, grid):
    data = make_clustered_classification(5, 2, N_FEATURES, n_samples=24, random_state=0)
    return Case(estimator, data, grid, accuracy_score, "accuracy")


def regression(estimator, grid):
    sizes = {"n_samples": (15, 25), "noise": 0.5, "random_state": 0}
    data = make_clustered_regression(5, 2, N_FEATURES, **sizes)
    return Case(estimator, data, grid, r2_score, "r2")


# Tools fit often, and how near a fit is to its end is no matter to them.
SHORT = {"n_init": 1, "tol": 0.1, "training": Training(polish=False)}
HUBER = IFCA(LinearModel(loss="huber"), n_clusters=2, random_state=0, **SHORT)
CASES = {
    "IFCAClassifier": classification(
        IFCAClassifier(2, random_state=0, **SHORT), {"n_clusters": [1, 2]}
    ),
    "LocalModelsRegressor": regression(LocalModelsRegressor(), {"alpha": [1e-4, 1.0]}),
    "IFCA": regression(HUBER, {"model__alpha": [1e-4, 1.0]}),
}


@pytest.fixture(params=some(CASES, 2))
def case(request):
    return CASES[request.param]


@pytest.fixture
def classifier():
    return CASES["IFCAClassifier"]


@pytest.fixture
def regressor():
    return CASES["LocalModelsRegressor"]


def routing(enabled):
    return sklearn.config_context(enable_metadata_routing=enabled)


def nan_with(message):
    """The tool goes on with nan and says so in warnings."""
    return pytest.warns(UserWarning, match=f"(?s){SCORING_FAILED}.*{message}")


def in_turn(names, *values):
    """Each combination of the values with one of two cases, or with all."""
    chosen = [
        (case, *each)
        for k, each in enumerate(product(*values))
        for case in some([*CASES][k % 2 :] + [*CASES][: k % 2], 1)
    ]
    return pytest.mark.parametrize(("case", *names), chosen, indirect=["case"])


BOTH = pytest.mark.parametrize("enabled", [False, True], ids=["off", "on"])
# what scikit-learn says after all scores were nan
SAYS_NAN = pytest.mark.filterwarnings(
    "ignore:One or more of the (test|train) scores are non-finite:UserWarning",
    f"ignore:{SCORING_FAILED}:UserWarning",
)
# what the estimator says when a tool keeps the groups to itself; asserted where it matters
SINGLE = pytest.mark.filterwarnings("ignore::skcfl.exceptions.SingleClientWarning")


# ------------------------------------------------------------------ requests

METHODS = ["fit", "predict", "predict_proba", "predict_log_proba", "decision_function", "score"]


def requested(estimator, method):
    return getattr(estimator.get_metadata_routing(), method).requests.get("groups")


def test_requests_can_be_changed():
    for method in METHODS:
        assert requested(LocalModelsClassifier(), method) is True
        assert not requested(LocalModelsClassifier(group_col=0), method)
    with routing(True):
        estimator = LocalModelsRegressor().set_predict_request(groups=False)
        assert requested(estimator, "predict") is False
        assert requested(estimator, "fit") is True
        estimator.set_fit_request(sample_weight=True).set_params(group_col="site")
        requests = estimator.get_metadata_routing().fit.requests
        assert requests == {"groups": False, "sample_weight": True}
        assert requested(estimator.set_params(group_col=None), "fit") is True  # nothing is lost


# ------------------------------------------------------------------ Pipeline


def make_pipe(case):
    return Pipeline([("scale", StandardScaler()), ("model", clone(case.estimator))])


def scaled(case):
    """The case with features scaled beforehand."""
    X = StandardScaler().fit_transform(case.X)
    return X, clone(case.estimator).fit(X, case.y, groups=case.groups)


def test_pipelines(case):
    """Parameters of steps and routing bring groups to fit, routing alone to scores."""
    X, expected = scaled(case)
    rows, groups = (case.X, case.y), {"groups": case.groups}
    with routing(False):
        with pytest.raises(ValueError, match="does not accept the groups parameter"):
            make_pipe(case).fit(*rows, **groups)
        off = make_pipe(case).fit(*rows, model__groups=case.groups)
        with pytest.raises(ValueError, match=NEEDS_GROUPS):
            off.score(*rows, **groups)  # dropped without a word; the estimator refuses
    with routing(True):
        on = make_pipe(case).fit(*rows, **groups)
        assert on.score(*rows, **groups) == expected.score(X, case.y, **groups)
        weights = np.arange(len(case.y)) + 1.0
        on[-1].set_score_request(sample_weight=True)
        weighted = on.score(*rows, **groups, sample_weight=weights)
        assert weighted == expected.score(X, case.y, sample_weight=weights, **groups)
    outputs = [name for name in ("predict", "predict_proba") if hasattr(expected, name)]
    for pipe, enabled in ((off, False), (on, True)):
        assert_array_equal(pipe[-1].params_, expected.params_)
        assert_array_equal(pipe[-1].groups_, expected.groups_)
        with routing(enabled):
            for name in outputs:
                answer = getattr(pipe, name)(case.X, **groups)
                assert_array_equal(answer, getattr(expected, name)(X, **groups))
            with pytest.raises(ValueError, match=NEEDS_GROUPS):
                pipe.predict(case.X)


def test_decision_functions_of_pipelines(classifier):
    """Without routing scikit-learn passes on parameters to predict and predict_proba only."""
    X, expected = scaled(classifier)
    groups = {"groups": classifier.groups}
    with routing(True):
        pipe = make_pipe(classifier).fit(classifier.X, classifier.y, **groups)
        answer = pipe.decision_function(classifier.X, **groups)
    assert_array_equal(answer, expected.decision_function(X, **groups))
    with routing(False), pytest.raises(ValueError, match=ROUTING_ONLY):
        pipe.decision_function(classifier.X, **groups)


def keeping_columns(case):
    """Ways through a ColumnTransformer that keep the ids: transformer and group_col."""
    names = [name for name in case.frame if name != "site"]
    scale = ("scale", StandardScaler(), names)
    keep = ("keep", "passthrough", ["site"])
    named = ColumnTransformer([keep, scale], verbose_feature_names_out=False)
    prefixed = ColumnTransformer([keep, scale])
    return {
        "name": (named.set_output(transform="pandas"), "site"),
        "prefixed name": (prefixed.set_output(transform="pandas"), "keep__site"),
        "last": (ColumnTransformer([scale, keep]), -1),
        "remainder": (make_column_transformer(scale[1:], remainder="passthrough"), -1),
    }


@in_turn(("enabled", "way"), [False, True], ["name", "prefixed name", "last", "remainder"])
def test_pipeline_with_column(case, way, enabled):
    """Also ColumnTransformer + Pipeline; then fit, predict, score need nothing else."""
    X, expected = scaled(case)
    transformer, column = keeping_columns(case)[way]
    pipe = make_pipeline(transformer, clone(case.estimator).set_params(group_col=column))
    with routing(enabled):
        pipe.fit(case.frame, case.y)
        prediction = pipe.predict(case.frame)
        score = pipe.score(case.frame, case.y)
    assert_array_equal(pipe[-1].groups_, expected.groups_)
    assert_allclose(pipe[-1].params_, expected.params_, atol=1e-9)
    assert_allclose(prediction, expected.predict(X, groups=case.groups), atol=1e-9)
    assert score == pytest.approx(expected.score(X, case.y, groups=case.groups))


def test_column_that_does_not_survive(case):
    transformer, _ = keeping_columns(case)["last"]
    with pytest.raises(ValueError, match="group_col='site' is a name, but X has no column names"):
        make_pipeline(transformer, case.by_column).fit(case.frame, case.y)
    with pytest.raises(ValueError, match="could not convert string to float"):
        make_pipeline(StandardScaler(), case.by_column).fit(case.frame, case.y)


# ------------------------------------------------------------------ GridSearchCV


def assert_pooled(case, search):
    """The search has fitted one model for all."""
    assert search.best_estimator_.groups_.tolist() == [0]
    expected = case.pooled(search.best_estimator_)
    assert_array_equal(search.best_estimator_.params_, expected.params_)


def assert_search(case, search, expected):
    assert_allclose(search.cv_results_["mean_test_score"], expected)
    best = case.candidates[int(np.argmax(expected))]
    best.set_params(group_col="site").fit(case.frame, case.y)
    assert_array_equal(search.best_estimator_.params_, best.params_)


OTHERS = some(["random", "halving", "halving random"], 2)
SCORINGS = ["None", "name", "grouped"]


def scorings(case, scoring):
    return {"None": None, "grouped": grouped_scorer(case.scoring)}.get(scoring, case.scoring)


def searches(case, estimator, **options):
    halving = dict(min_resources=80, factor=2)  # so many rows have some of every client
    halving |= {"random_state": 0, **options}
    return {
        "grid": GridSearchCV(estimator, case.grid, **options),
        "random": RandomizedSearchCV(estimator, case.grid, n_iter=2, random_state=0, **options),
        "halving": HalvingGridSearchCV(estimator, case.grid, **halving),
        "halving random": HalvingRandomSearchCV(estimator, case.grid, **halving),
    }


@pytest.mark.parametrize(
    ("kind", "scoring"),
    [*(("grid", each) for each in SCORINGS), *((k, "None") for k in OTHERS)],
)
@SAYS_NAN
@SINGLE
def test_search_routing_off(case, kind, scoring):
    """Only the splitter gets the groups, and the warning tells; a grouped scorer has no answer."""
    search = searches(case, case.estimator, cv=case.cv, scoring=scorings(case, scoring))[kind]
    only_one = pytest.warns(SingleClientWarning, match="to the splitter only")
    with routing(False), nan_with(NO_GROUPS_REACHED) if scoring == "grouped" else only_one:
        search.fit(case.X, case.y, groups=case.groups)
    assert_pooled(case, search)
    if kind == "grid":
        missing = np.isnan(search.cv_results_["mean_test_score"])
        assert missing.all() if scoring == "grouped" else not missing.any()


@in_turn(("kind",), ["grid", *OTHERS])
@SAYS_NAN
def test_search_routing_on(case, kind):
    """Fit and score get their slices; named, a scorer's predict gets nothing."""
    named = searches(case, case.estimator, cv=case.cv, scoring=case.scoring)[kind]
    with routing(True), nan_with(NEEDS_GROUPS):
        named.fit(case.X, case.y, groups=case.groups)
    assert np.isnan(named.cv_results_["mean_test_score"]).all()
    assert_array_equal(named.best_estimator_.groups_, np.unique(case.groups))
    results = []
    for scoring in ("None", "grouped"):
        options = {"cv": case.cv, "scoring": scorings(case, scoring), "n_jobs": 2}
        search = searches(case, case.estimator, **options)[kind]
        # Routing is known in threads, which get scikit-learn's settings as processes do.
        with routing(True), parallel_config("threading"):
            search.fit(case.X, case.y, groups=case.groups)
            score = search.score(case.X, case.y, groups=case.groups)
        prediction = search.best_estimator_.predict(case.X, groups=case.groups)
        assert score == case.metric(case.y, prediction)
        results.append(search.cv_results_["mean_test_score"])
        expected = case.fitted(search.best_estimator_)
        assert_array_equal(search.best_estimator_.params_, expected.params_)
    assert_array_equal(*results)
    # and the same as with ids in a column, where scikit-learn's names work
    search = searches(case, case.by_column, cv=case.column_cv, scoring=case.scoring)[kind]
    search.fit(case.frame, case.y)
    assert_allclose(search.cv_results_["mean_test_score"], results[0])
    assert np.isfinite(results[0]).all()
    if kind in ("grid", "random"):
        assert_allclose(results[0], case.search_scores())


@pytest.mark.parametrize(
    ("scoring", "enabled"),
    [("None", True), ("name", False), ("grouped", True), ("name and groups", False)],
)
def test_grid_search_with_column(case, scoring, enabled):
    """With group_col on the estimator, groups= still serves a splitter that wants them."""
    beside = scoring == "name and groups"
    cv, more = (case.cv, {"groups": case.groups}) if beside else (case.column_cv, {})
    scoring = scorings(case, scoring)
    search = GridSearchCV(case.by_column, case.grid, cv=cv, scoring=scoring)
    with routing(enabled):
        search.fit(case.frame, case.y, **more)
        assert_search(case, search, case.search_scores())
        prediction = search.predict(case.frame)
    assert_array_equal(prediction, search.best_estimator_.predict(case.frame))


def test_search_predict(regressor):
    """It takes no groups with or without routing; best_estimator_ does."""
    case = regressor
    with routing(True):
        search = GridSearchCV(case.estimator, case.grid, cv=case.cv)
        search.fit(case.X, case.y, groups=case.groups)
    for enabled in (False, True):
        with routing(enabled):
            with pytest.raises(TypeError, match="unexpected keyword argument 'groups'"):
                search.predict(case.X, groups=case.groups)
            with pytest.raises(ValueError, match=NEEDS_GROUPS):
                search.predict(case.X)
    with routing(False), pytest.raises(ValueError, match=ROUTING_ONLY):
        search.score(case.X, case.y, groups=case.groups)
    search.best_estimator_.predict(case.X, groups=case.groups)


# ------------------------------------------------------------------ cross_validate and curves


def scores_of(kind, case, estimator, X, **options):
    """Test scores of cross-validation, of a learning curve's end, or a validation curve's."""
    if kind == "cross_validate":
        return cross_validate(estimator, X, case.y, **options)["test_score"]
    if kind == "learning":
        return learning_curve(estimator, X, case.y, train_sizes=[0.7, 1.0], **options)[2][-1]
    (name, values), *_ = case.grid.items()
    options |= {"param_name": name, "param_range": values}
    return validation_curve(estimator, X, case.y, **options)[1][-1]


def expected_scores(kind, case):
    return case.scores(case.candidates[-1] if kind == "validation" else case.estimator)


@in_turn(("kind", "scoring"), ["cross_validate", "learning", "validation"], SCORINGS)
@SAYS_NAN
def test_scores(case, kind, scoring):
    """Fit gets its slice; the score gets one with routing, but for a name, or by the column."""
    score = scorings(case, scoring)
    options = dict(scoring=score, params={"groups": case.groups})
    rows, expected = (kind, case, case.estimator, case.X), expected_scores(kind, case)
    with routing(False), nan_with(NO_GROUPS_REACHED if callable(score) else NEEDS_GROUPS):
        assert np.isnan(scores_of(*rows, cv=case.plain_cv, **options)).all()
    named = scoring == "name"
    with routing(True), nan_with(NEEDS_GROUPS) if named else nullcontext():
        scores = scores_of(*rows, cv=case.cv, **options)
    assert_allclose(scores, np.full(3, np.nan) if named else expected)
    by_column = kind, case, case.by_column, case.frame
    with routing(named):
        scores = scores_of(*by_column, cv=case.column_cv, scoring=score)
    assert_allclose(scores, expected)


@SINGLE
@SAYS_NAN
def test_cross_validate_groups_argument(regressor):
    """``groups=`` is for the splitter, and refused with routing; params= are for fit."""
    case = regressor
    rows, params = (case.estimator, case.X, case.y), {"groups": case.groups}
    with routing(False):
        whole = cross_validate(*rows, cv=case.cv, **params, return_estimator=True)
        assert all(len(estimator.groups_) == 1 for estimator in whole["estimator"])
        result = cross_validate(*rows, cv=case.plain_cv, params=params, return_estimator=True)
        parts = case.plain_cv.split(case.X)
        for (train, _), estimator in zip(parts, result["estimator"], strict=True):
            assert_array_equal(estimator.groups_, np.unique(case.groups[train]))
        with pytest.raises(ValueError, match="ClientKFold needs to know the client"):
            cross_validate(*rows, cv=case.cv, params=params)
    with routing(True), pytest.raises(ValueError, match="via the `params` argument"):
        cross_validate(*rows, cv=case.cv, **params)


@BOTH
def test_cross_val_predict(regressor, enabled):
    """Groups reach fit, never predict."""
    case = regressor
    with routing(enabled):
        with pytest.raises(ValueError, match=NEEDS_GROUPS):
            params = {"groups": case.groups}
            cross_val_predict(case.estimator, case.X, case.y, cv=case.plain_cv, params=params)
        prediction = cross_val_predict(case.by_column, case.frame, case.y, cv=case.column_cv)
    for train, test in case.cv.split(case.X, case.y, case.groups):
        expected = case.fitted(rows=train).predict(case.X[test], groups=case.groups[test])
        assert_allclose(prediction[test], expected, atol=1e-9)


@SAYS_NAN
def test_where_learning_curves_have_no_answer(regressor):
    """Four rows miss one of five clients, and so do plain folds of rows sorted by client."""
    case, order = regressor, np.argsort(regressor.groups, kind="stable")
    for rows, options in (
        ((case.frame, case.y), {"train_sizes": [4], "cv": case.column_cv}),
        ((case.frame.iloc[order], case.y[order]), {"train_sizes": [1.0], "cv": KFold(2)}),
    ):
        with pytest.warns(UserWarning, match="not seen in fit"):
            scores = learning_curve(case.by_column, *rows, **options)[2]
        assert np.isnan(scores).all()


# ------------------------------------------------------------------ estimators of estimators


@BOTH
@pytest.mark.parametrize("kind", ["calibration", "stacking", "voting"])
def test_calibration_stacking_and_voting(classifier, kind, enabled):
    """Groups reach fit with routing, but not the predictions of the tool."""
    case, groups = classifier, {"groups": classifier.groups}

    def tool(estimator, cv):
        if kind == "calibration":
            return CalibratedClassifierCV(estimator, cv=cv)
        named = [("fed", estimator)]
        final = LogisticRegression()
        return (
            StackingClassifier(named, final, cv=cv)
            if kind == "stacking"
            else (VotingClassifier(named))
        )

    with routing(enabled):
        plain = tool(case.estimator, case.plain_cv)
        if kind == "voting" and enabled:
            plain.fit(case.X, case.y, **groups)
            assert_array_equal(plain.estimators_[0].params_, case.fitted().params_)
            with pytest.raises(ValueError, match=NEEDS_GROUPS):
                plain.predict(case.X)
        else:
            message = NEEDS_GROUPS if enabled or kind == "calibration" else ROUTING_ONLY
            with pytest.raises(ValueError, match=message):
                plain.fit(case.X, case.y, **groups)
        by_column = tool(case.by_column, case.column_cv).fit(case.frame, case.y)
        score = by_column.score(case.frame, case.y)
    assert score > 0.8
    if kind == "voting":
        assert score == case.fitted().score(case.X, case.y, **groups)


@BOTH
def test_permutation_importance(regressor, enabled):
    case = regressor
    estimator = case.fitted()
    with routing(enabled):
        for name in ("None", "name", "grouped"):
            message = NO_GROUPS_REACHED if name == "grouped" else NEEDS_GROUPS
            with pytest.raises(ValueError, match=message):
                scoring = scorings(case, name)
                permutation_importance(estimator, case.X, case.y, scoring=scoring)
        # rows stay where they are, so a scorer may know the groups by itself
        arguments = dict(n_repeats=2, random_state=0)
        knowing = lambda e, X, y: e.score(X, y, groups=case.groups)  # noqa: E731
        bound = permutation_importance(estimator, case.X, case.y, scoring=knowing, **arguments)
        by_column = case.by_column.fit(case.frame, case.y)
        by_column = permutation_importance(by_column, case.frame, case.y, **arguments)
    assert bound.importances.shape == (N_FEATURES, 2)
    # one more, what it is worth to know the client: nothing where there is one cluster
    assert by_column.importances.shape == (N_FEATURES + 1, 2)
    assert by_column.importances_mean[-1] > 0


@BOTH
def test_bagging(regressor, enabled):
    case, bagging = regressor, BaggingRegressor
    arguments = dict(n_estimators=2, random_state=0)
    bags = bagging(case.estimator, **arguments)
    with routing(enabled):
        if enabled:  # fit gets groups, predict does not
            bags.fit(case.X, case.y, groups=case.groups)
            assert_array_equal(bags.estimators_[0].groups_, np.unique(case.groups))
            with pytest.raises(ValueError, match=NEEDS_GROUPS):
                bags.predict(case.X)
        else:
            with pytest.raises(ValueError, match=ROUTING_ONLY):
                bags.fit(case.X, case.y, groups=case.groups)
        with pytest.raises(ValueError, match="'site' is a name, but X has no column names"):
            bagging(case.by_column, **arguments).fit(case.frame, case.y)
        by_position = clone(case.estimator).set_params(group_col=N_FEATURES)
        bags = bagging(by_position, **arguments).fit(case.frame, case.y)
        assert bags.score(case.frame, case.y) > 0.8
    assert_array_equal(bags.estimators_[0].groups_, np.unique(case.groups))
