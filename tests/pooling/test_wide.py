"""Wide models: clients of few rows make no matrices of the parameters' size."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from trials import some

import skcfl.models._posteriors as models_posteriors
from skcfl import PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.calls.posteriors_asked import LeftOutSums, PosteriorProducts, Posteriors, PosteriorSums
from skcfl.federation import Faults, InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling import em, normal_equations

GROUPS = np.repeat(np.arange(12), 6)


def rows(seed=0):
    """Seven features with zeros, and what the rows are about."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(len(GROUPS), 7))
    X[np.abs(X) < 0.8] = 0.0
    B = 1.0 + 0.5 * rng.normal(size=(12, 7))
    return X, (X * B[GROUPS]).sum(axis=1), rng


@pytest.fixture
def narrow_is_wide(monkeypatch):
    """Models of any size are wide, and errors of the means exact."""
    monkeypatch.setattr(models_posteriors, "MAX_DENSE", 0)
    monkeypatch.setattr(em, "MAX_DENSE", 0)
    monkeypatch.setattr(normal_equations, "PROBES", 20)


def targets(loss, z, rng):
    return {
        "squared_error": lambda: z + rng.normal(size=len(z)),
        "poisson": lambda: rng.poisson(np.exp(z / 4)).astype(float),
        "two": lambda: (z + rng.logistic(size=len(z)) > 2).astype(int),
        "three": lambda: np.digitize(z + rng.logistic(size=len(z)), [1, 3]),
    }[loss]()


@pytest.mark.parametrize("loss", ["squared_error", "three"])
@pytest.mark.parametrize("most", [0, em.MAX_DENSE])
def test_slopes_of_constants_do_not_vary(loss, most, monkeypatch):
    """In any units: they are a part of the intercept, whatever curvatures clients send."""
    monkeypatch.setattr(em, "MAX_DENSE", most)
    X, z, rng = rows()
    X[:, 2], X[:, 4] = 0.3, np.where(np.arange(len(X)) == 7, 0.4, 0.3)
    cls = PartialPoolingClassifier if loss == "three" else PartialPoolingRegressor
    model = cls(1, basis="linear", standardize=False, covariance="diag")
    model.fit(X, targets(loss, z, rng), groups=GROUPS)
    varying = model._population.varying.reshape(-1, 8)
    assert_array_equal(varying, np.broadcast_to(np.arange(8) != 2, varying.shape))


@pytest.mark.parametrize("loss", ["squared_error", "poisson", "two", "three"])
@pytest.mark.parametrize("to_rows", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("by_rows", [True, False])
def test_sums_are_those_of_matrices(loss, to_rows, by_rows, monkeypatch):
    X, z, rng = rows()
    y, classes = targets(loss, z, rng), {"two": 2, "three": 3}.get(loss)
    model = LinearModel("log_loss" if classes else loss).bind(7, classes)
    pool = InProcessFederation(to_rows(X), y, GROUPS).open(model, random_state=0)
    p = pool.n_params
    root = np.abs(rng.normal(size=p))
    root[2] = 0.0
    prior = rng.normal(size=(2, p)), root, np.array([0.3, 0.7]), 0.7
    prior += (3.5 if loss == "squared_error" else np.inf,)
    vectors = rng.normal(size=(2, 3, p))
    wanted = pool.ask(PosteriorSums, *prior)
    posteriors = [pool.ask(Posteriors, *prior, dense=dense) for dense in (True, False)]
    left = prior[0], np.array([root, 0.5 * root]), np.array([0.7, 1.0]), np.array([0.4, 0.6])
    if loss == "squared_error":
        left += (None, np.array([3.5, np.inf]))
    moved = prior[0] + 0.1, *left[1:]
    left_out = [pool.ask(LeftOutSums, *asked) for asked in (left, moved)]
    if by_rows:
        monkeypatch.setattr(models_posteriors, "MAX_DENSE", 0)
        assert model.has_few_rows(pool._site._blocks[0][0], root)
    sums = pool.ask(PosteriorSums, *prior, dense=False)
    products = pool.ask(PosteriorProducts, *prior, vectors)
    assert_allclose(products, np.matmul(vectors, wanted["curvature"]), rtol=1e-7, atol=1e-8)
    wanted["curvature"] = np.einsum("kpp->kp", wanted["curvature"])
    wanted["coupling"] = wanted["coupling"].sum(axis=1)
    for name, value in wanted.items():
        assert_allclose(sums[name], value, rtol=1e-7, atol=1e-8, err_msg=name)
    for dense, answers in zip((True, False), posteriors, strict=True):
        for got, value in zip(pool.ask(Posteriors, *prior, dense=dense), answers, strict=True):
            assert_allclose(got, value, rtol=1e-6, atol=1e-8)
    for asked, answers in zip((left, moved), left_out, strict=True):
        for got, value in zip(pool.ask(LeftOutSums, *asked), answers, strict=True):
            assert_allclose(got, value, rtol=1e-6, atol=1e-8)
    # Of another prior than that of the last sums.
    other = prior[0] + 1.0, *prior[1:]
    products = pool.ask(PosteriorProducts, *other, vectors)
    curvature = pool.ask(PosteriorSums, *other)["curvature"]
    assert_allclose(products, np.matmul(vectors, curvature), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("loss", "to_rows"),
    [("poisson", sparse.csr_array), ("two", np.asarray), ("three", sparse.csr_array)],
)
@pytest.mark.parametrize("kind", ["full", "diagonal", "none"])
def test_posteriors_of_few_rows_are_those_of_more_that_weigh_nothing(loss, to_rows, kind):
    """With them there are more rows than parameters, and matrices of these."""
    X, z, rng = rows()
    y, classes = targets(loss, z, rng), {"two": 2, "three": 3}.get(loss)
    model = LinearModel("log_loss" if classes else loss).bind(7, classes)
    p = model.n_params
    root = {"full": 0.3 * rng.normal(size=(p, p)), "diagonal": rng.uniform(size=p)}.get(kind)
    prior = rng.normal(size=(2, p)), np.zeros(p) if root is None else root
    prior += (np.array([0.3, 0.7]),)
    errors = np.array([np.diag(rng.uniform(size=p)), np.eye(p)])
    answers, interpolated = [], []
    for times in (1, 5):
        padded = to_rows(np.tile(X, (times, 1)))
        weights = np.repeat([1.0, 1e-300], [len(y), (times - 1) * len(y)])
        federation = InProcessFederation(
            padded, np.tile(y, times), np.tile(GROUPS, times), sample_weight=weights
        )
        pool = federation.open(model, random_state=0)
        few = pool._site._blocks[0][0].shape[1] * model.n_outputs < p
        assert few == (times == 1)
        answers.append(list(pool.ask(PosteriorSums, *prior, 0.7).values()))
        for how in ({"dense": True, "errors": errors}, {"dense": False}):
            answers[-1] += pool.ask(Posteriors, *prior, 0.7, **how)
        interpolated.append(pool.ask(Posteriors, *prior, 1e-8))
    for got, wanted in zip(*answers, strict=True):
        assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)
    # Rows of hardly any noise, which leave fewer digits.
    for got, wanted in zip(*interpolated, strict=True):
        assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["poisson", "three"])
def test_modes_under_one_prior_are_not_those_of_another(loss):
    """Searches begin at the last modes, which have parts where this prior has no variance."""
    X, z, rng = rows()
    X, z, groups = np.tile(X, (4, 1)), np.tile(z, 4), np.tile(GROUPS, 4)
    y, classes = targets(loss, z, rng), {"two": 2, "three": 3}.get(loss)
    model = LinearModel("log_loss" if classes else loss).bind(7, classes)
    p = model.n_params
    theta, root = rng.normal(size=(1, p)), rng.uniform(0.2, 1.0, size=p)
    narrow = np.where(np.arange(p) % 3 == 0, root, 0.0)
    answers = []
    for priors in ([root, narrow], [narrow]):
        pool = InProcessFederation(X, y, groups).open(model, random_state=0)
        answers.append([pool.ask(Posteriors, theta, own, np.ones(1), 1.0) for own in priors][-1])
    for got, wanted in zip(*answers, strict=True):
        assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)


FITS = [
    (sparse.csr_array, {"n_clusters": 1, "covariance": "spherical"}),
    (np.asarray, {"n_clusters": 2, "random": [0, 1]}),
    (sparse.csr_array, {"n_clusters": 1, "prior": np.inf, "random": "intercept"}),
    (np.asarray, {"n_clusters": 1}),
]


@pytest.mark.parametrize(("to_rows", "options"), some(FITS, 1))
def test_fits_are_those_of_matrices(to_rows, options, request, monkeypatch):
    monkeypatch.setattr(em, "SETTLED", 1e-6)
    monkeypatch.setattr(em, "MAX_PRIORS", 200)
    X, z, rng = rows()
    y = targets("squared_error", z, rng)
    fits = []
    options = {"covariance": "diag", "basis": "linear", "df": np.inf, "tol": 1e-8, **options}
    for _ in range(2):
        model = PartialPoolingRegressor(**options, random_state=0)
        fits.append(model.fit(to_rows(X), y, groups=GROUPS))
        request.getfixturevalue("narrow_is_wide")
    dense, wide = fits
    assert wide.loglik_ == pytest.approx(dense.loglik_, abs=5e-4)
    assert_allclose(wide.params_, dense.params_, atol=1e-3)
    assert_allclose(wide.covariance_, dense.covariance_, atol=1e-3)
    assert np.isnan(wide.standard_errors_).all()
    assert_allclose(
        wide.predict(to_rows(X), groups=GROUPS), dense.predict(X, groups=GROUPS), atol=5e-3
    )


def test_means_of_wide_classes_have_the_prior_that_explains_them(monkeypatch):
    """From few probes, and from a start far below it; intercepts have no least-norm errors."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(600, 12)), np.repeat(np.arange(6), 100)
    z = X @ rng.normal(size=(12, 3)) + rng.gumbel(size=(600, 3))
    pool = InProcessFederation(X, z.argmax(axis=1), groups).open(
        LinearModel("log_loss").bind(12, 3), random_state=0
    )
    free = np.tile(np.arange(13) == 12, 3)
    options = em.Options(200, 1e-8, "auto", free, np.ones(39, dtype=bool), None)
    monkeypatch.setattr(em, "SETTLED", 1e-6)
    dense = em.pooled(pool, options)
    wanted = normal_equations.explaining_prior(dense.population, dense.sums)
    monkeypatch.setattr(em, "MAX_DENSE", 0)
    monkeypatch.setattr(normal_equations, "PROBES", 30)
    wide = em.pooled(pool, options)
    assert normal_equations.is_lean(wide.sums)
    assert_allclose(wide.population.prior, wanted, rtol=0.1)
    variances = normal_equations.mean_variances(pool, wide.population, wide.sums)
    of_matrix = normal_equations.mean_variances(
        pool, wide.population, pool.ask(PosteriorSums, *wide.population.arguments)
    )
    assert_allclose(variances[:, ~free].sum(), of_matrix[:, ~free].sum(), rtol=0.1)


@pytest.mark.parametrize("n_rows, is_lean", [(12, False), (8, True)])
def test_clients_with_rows_enough_send_curvatures_of_wide_models(n_rows, is_lean, monkeypatch):
    """Their own are matrices in any case, and products would take many exchanges."""
    monkeypatch.setattr(em, "MAX_DENSE", 8)
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(5 * n_rows, 9)), np.repeat(np.arange(5), n_rows)
    clients = InProcessFederation(X, X[:, 0], groups)
    pool = clients.open(LinearModel("squared_error").bind(9), random_state=0)
    options = em.Options(5, 1e-8, "auto", np.arange(10) == 9, np.ones(10, dtype=bool), None)
    assert normal_equations.is_lean(em.pooled(pool, options).sums) == is_lean


@pytest.mark.parametrize("most_dense", [0, 256])
def test_steps_of_one_model_are_not_refused_where_other_clients_answer(most_dense, monkeypatch):
    """More rows are less likely at any model, and no step would ever be short enough."""
    monkeypatch.setattr(em, "MAX_DENSE", most_dense)
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(600, 5)), np.repeat(np.arange(12), 50)
    y = (X @ rng.normal(size=5) + rng.logistic(size=600) > 0).astype(int)
    faults = Faults(dropout=0.3, random_state=0)
    pool = InProcessFederation(X, y, groups, faults=faults).open(
        LinearModel("log_loss").bind(5, 2), random_state=0
    )
    free = np.arange(6) == 5
    options = em.Options(200, 1e-8, "auto", free, np.ones(6, dtype=bool), None)
    asked = mock.Mock(side_effect=em.evaluate)
    monkeypatch.setattr(em, "evaluate", asked)
    assert em.pooled(pool, options).n_iter == asked.call_count
    assert asked.call_count <= 2 * em.POOLED_STEPS + em.MAX_PRIORS + 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("cls", some([PartialPoolingClassifier, PartialPoolingRegressor], 1))
def test_memory_is_that_of_vectors(cls):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), 12)
    X = sparse.random_array((72, 4000), density=0.01, rng=0, format="csr")
    z = X[:, :50].sum(axis=1) + 0.3 * rng.normal(size=6)[groups] + 0.3 * rng.normal(size=72)
    y = z if cls is PartialPoolingRegressor else (z > np.median(z)).astype(int)
    tracemalloc.start()
    model = cls(1, max_iter=15, tol=1e-2).fit(X, y, groups=groups)
    model.predict(X, groups=groups)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6 < 8 * 4001**2
    assert sparse.issparse(model.covariance_) and model.covariance_.shape == (4001, 4001)
    assert np.isfinite(model.params_std_).all()
    assert "50 of 4001 parameters" in model.summary()
    new = model.adapt(X[:5], y[:5], groups=np.full(5, 9))
    assert new.params_.shape == (7, 4001)
