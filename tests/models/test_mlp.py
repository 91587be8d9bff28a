"""Networks: gradients, invariances, scikit-learn's forward pass, training; through the pool."""

from functools import partial

import numpy as np
import pytest
from client_rows import EVERY_LOSS, ClientRows, assert_slopes
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.neural_network import MLPClassifier, MLPRegressor
from trials import examples

import skcfl.models._network
from skcfl.calls.first_order import (
    BestResponse,
    LocalUpdate,
    Losses,
    Objectives,
    ObjectivesGradients,
)
from skcfl.clients.training import TrainingTerms, train
from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP
from skcfl.models._network import SLOPES

seeds = st.integers(0, 2**32 - 1)
# No row, one row, few, many.
SIZES = [4, 1, 0, 9, 3, 12, 9]
every_loss = pytest.mark.parametrize("loss", EVERY_LOSS)
activations = st.sampled_from(sorted(SLOPES))


class Problem(ClientRows):
    """Rows of clients in a random order, and pools of networks of them."""

    def __init__(
        self, loss="log_loss-3", seed=0, hidden=(4, 3), alpha=0.1, sizes=SIZES, d=3, **options
    ):
        super().__init__(loss, seed, sizes, d)
        self.scatter(0.8)
        options = {"precision": "double", **options}
        self.model = MLP(hidden, loss=self.model.loss, alpha=alpha, **options)

    def take(self, rows):
        for name in ("X", "y", "codes", "weights"):
            setattr(self, name, getattr(self, name)[rows])

    def models(self, count, seed=1, scale=1.0):
        return scale * self.bind().init_params(count, seed)


# ----------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("hidden", [(), (6,), (6, 2), 6, [6], np.array([6, 2])])
def test_layers_are_named_and_cover_the_vector(hidden):
    bound = MLP(hidden).bind(3, 4)
    slices = bound.layer_slices()
    sizes = np.atleast_1d(np.asarray(hidden, dtype=int))
    assert list(slices) == [*(f"hidden{i + 1}" for i in range(len(sizes))), "output"]
    w = bound.init_params(1, 0)[0]
    units = [3, *sizes, 4]
    for (name, (W, b)), n_in, n_out in zip(
        bound.weights(w).items(), units[:-1], units[1:], strict=True
    ):
        assert W.shape == (n_in, n_out)
        assert b.shape == (n_out,)
        assert_array_equal(np.concatenate([W.ravel(), b]), w[slices[name]])
    with pytest.raises(ValueError, match="one parameter vector"):
        bound.weights(bound.init_params(2, 0))


@pytest.mark.parametrize(("precision", "dtype"), [("single", np.float32), ("double", np.float64)])
def test_precision_is_the_models(precision, dtype):
    """Whatever the type of the rows."""
    bound = MLP((3,), precision=precision).bind(2, 3, dtype=float)
    X, y = np.ones((4, 2)), np.array([0, 1, 2, 0])
    pool = open_rows(bound, X, y, np.array([0, 0, 1, 1]), 2)
    w = pool.model.init_params(2, 0)
    answers = [w, pool.start(), pool.ask(ObjectivesGradients, w)[1]]
    answers += [pool.ask(call, w) for call in (Losses, Objectives)]
    answers += [pool.ask(LocalUpdate, w, 2, 0.1, name) for name in ("sgd", "momentum", "adam")]
    answers += [bound.decision(X, w, np.zeros(4, int))]
    assert {a.dtype for a in answers} == {np.dtype(dtype)}
    double = pool.ask(ObjectivesGradients, w, dtype=np.float64)
    assert {a.dtype for a in double} == {np.dtype(np.float64)}


def test_starts_are_those_of_scikit_learn():
    """Uniform within Glorot's bounds, reproducible, different by seed."""
    bound = MLP((50,), precision="double").bind(30, 10)
    one, two, other = (bound.init_params(20, seed) for seed in (0, 0, 1))
    assert_array_equal(one, two)
    assert np.abs(one - other).max() > 0.1
    for part, n in zip(bound.layer_slices().values(), (80, 60), strict=True):
        limit = np.sqrt(6 / n)
        assert 0.99 * limit < np.abs(one[:, part]).max() <= limit
    assert_array_equal(bound.start(3), bound.init_params(1, 3)[0])


# ---------------------------------------------------------------------------- first order


@every_loss
@examples(4)
@given(
    seed=seeds,
    activation=activations,
    hidden=st.sampled_from([(), (5,), (4, 3), (3, 4, 2)]),
    alpha=st.sampled_from([0.0, 0.3]),
    form=st.sampled_from([np.asarray, sparse.csr_array]),
    together=st.sampled_from([1, 2**20]),
)
def test_gradients_are_those_of_finite_differences(
    loss, seed, activation, hidden, alpha, form, together
):
    problem = Problem(loss, seed, hidden, alpha, activation=activation)
    with pytest.MonkeyPatch.context() as patch:
        # One client at a time, or all together.
        patch.setattr(skcfl.models._network, "CACHE_BYTES", together)
        pool = problem.pool(form)
        w = problem.models(problem.m)
        values, gradients = pool.ask(ObjectivesGradients, w)
        assert_array_equal(pool.ask(Objectives, w), values)
        assert_slopes(partial(pool.ask, Objectives), w, gradients)


@every_loss
@examples(4)
@given(seed=seeds, activation=activations, form=st.booleans())
def test_losses_are_means_of_row_losses(loss, seed, activation, form):
    problem = Problem(loss, seed, activation=activation)
    pool, theta = problem.pool(sparse.csr_matrix if form else np.asarray), problem.models(3)
    bound = pool.model
    rows = problem.X, problem.y, theta
    losses = np.column_stack(
        [bound.row_losses(*rows, np.full(len(problem.y), k)) for k in range(3)]
    )
    for i in range(problem.m):
        mine = problem.codes == i
        if mine.any():
            wanted = np.average(losses[mine], axis=0, weights=problem.weights[mine])
            assert_allclose(pool.ask(Losses, theta)[i], wanted, rtol=1e-12)
    chosen, choice, gradients = pool.ask(BestResponse, theta)
    assert_array_equal(chosen, pool.ask(Losses, theta))
    full = pool.client_sizes > 0
    assert_array_equal(choice[full], chosen.argmin(axis=1)[full])
    assert_allclose(gradients, pool.ask(ObjectivesGradients, theta[choice])[1], rtol=1e-12)
    own = chosen[np.arange(problem.m), choice] + pool.model.penalties(theta)[choice]
    assert_allclose(pool.ask(Objectives, theta[choice])[full], own[full], rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [*zip(["regressor", "binary", "multinomial", "regressor"], sorted(SLOPES), strict=True)],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_predictions_are_scikit_learns(kind, activation):
    """Its forward pass with its fitted coefficients."""
    problem = Problem({"regressor": "squared_error", "binary": "log_loss"}.get(kind, "log_loss-3"))
    cls = MLPRegressor if kind == "regressor" else MLPClassifier
    theirs = cls(hidden_layer_sizes=(5, 4), activation=activation, max_iter=20, random_state=0)
    theirs.fit(problem.X, problem.y)
    problem.model.set_params(hidden_layer_sizes=(5, 4), activation=activation)
    bound = problem.bind()
    pairs = zip(theirs.coefs_, theirs.intercepts_, strict=True)
    w = np.concatenate([np.concatenate([W.ravel(), b]) for W, b in pairs])[None]
    raw = bound.decision(problem.X, w, np.zeros(len(problem.X), int))
    if kind == "regressor":
        assert_allclose(bound.output(raw), theirs.predict(problem.X), rtol=1e-12)
    else:
        assert_allclose(bound.proba(raw), theirs.predict_proba(problem.X), rtol=1e-10)
        assert_array_equal(bound.output(raw), theirs.predict(problem.X))
        assert bound.scores(raw).shape == ((len(raw),) if kind == "binary" else (len(raw), 3))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.csc_matrix])
def test_predictions_row_by_row(form, monkeypatch):
    """Each row by its own model, in chunks of a few rows."""
    problem = Problem()
    bound, params = problem.bind(), problem.models(4)
    index = problem.rng.integers(3, size=len(problem.X))
    wanted = [bound.decision(problem.X[[r]], params[[k]], [0])[0] for r, k in enumerate(index)]
    monkeypatch.setattr(skcfl.models._network, "CACHE_BYTES", 8 * 4 * 5)
    assert_allclose(bound.decision(form(problem.X), params, index), wanted, rtol=1e-12)


# ---------------------------------------------------------------------------- invariances


def everything(pool, w, seed=0):
    """Every answer of a pool of networks, as a dict of arrays."""
    pool.random_state.seed(seed)
    rng = np.random.default_rng(seed)
    steps, rho = rng.integers(0, 6, size=len(w)), rng.uniform(0.1, 1, size=len(w))
    return {
        "losses": pool.ask(Losses, w[:3]),
        "objectives": pool.ask(Objectives, w),
        "gradients": pool.ask(ObjectivesGradients, w)[1],
        "best": pool.ask(BestResponse, w[:3])[2],
        "sgd": pool.ask(LocalUpdate, w, 5, 0.1),
        "momentum": pool.ask(LocalUpdate, w, steps, 0.05, "momentum"),
        "adam": pool.ask(LocalUpdate, w, steps, 0.01, "adam"),
        "batches": pool.ask(LocalUpdate, w, 7, 0.01, "adam", batch_size=4),
        "pulled": pool.ask(LocalUpdate, w, 4, 0.1, center=0.5 * w, rho=rho),
        "monotone": pool.ask(LocalUpdate, w, 4, 5.0, monotone=True),
    }


def assert_same(found, wanted, rtol=1e-9, atol=1e-11, skip=()):
    for name, a in wanted.items():
        if name not in skip:
            assert_allclose(found[name], a, rtol=rtol, atol=atol, err_msg=name)


@examples(3)
@given(seed=seeds, activation=activations, loss=st.sampled_from(EVERY_LOSS))
def test_blocks_padding_form_and_order_change_nothing(seed, activation, loss):
    problem = Problem(loss, seed, activation=activation)
    w = problem.models(problem.m)
    wanted = everything(problem.pool(), w)
    for size in (1, 300):
        assert_same(everything(problem.pool(block_bytes=size), w), wanted)
    assert_same(everything(problem.pool(sparse.csr_array), w), wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skcfl.models._network, "CACHE_BYTES", 1)
        assert_same(everything(problem.pool(), w), wanted)
    problem.take(problem.rng.permutation(len(problem.codes)))
    # Batches depend on the order of the rows by nature.
    assert_same(everything(problem.pool(), w), wanted, skip=("batches",))


@pytest.mark.parametrize("loss", ["squared_error", "poisson", "log_loss", "log_loss-3"])
def test_integer_weights_are_repetitions(loss):
    """Exactly so in double precision, Adam included; rows of weight zero are not there."""
    problem = Problem(loss, activation="tanh")
    w = problem.models(problem.m)
    problem.weights = problem.rng.integers(0, 4, size=len(problem.y)).astype(float)
    weighted = everything(problem.pool(), w)
    problem.take(np.repeat(np.arange(len(problem.y)), problem.weights.astype(int)))
    problem.weights = None
    kept = np.bincount(problem.codes, minlength=problem.m) > 0
    repeated = everything(problem.pool(), w)
    pairs = [{name: a[kept] for name, a in each.items()} for each in (weighted, repeated)]
    assert_same(*pairs, atol=1e-10, skip=("batches",))


def test_participants_are_trained_as_among_all():
    """Bit by bit, whoever shares a block."""
    problem = Problem(sizes=[9] * 6, precision="single")
    pool, w = problem.pool(), problem.models(6)
    some = np.array([4, 1, 2])
    for name in ("sgd", "adam"):
        alone = pool.subset(some).ask(LocalUpdate, w[some], 5, 0.01, name)
        assert_array_equal(alone, pool.ask(LocalUpdate, w, 5, 0.01, name)[some])


# ------------------------------------------------------------------------------- training


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_training_is_that_of_a_loop(optimizer, batch_size):
    """Along the gradient plus the pull, with steps, rates and pulls that differ by client.

    Batches change rows, never the rule.
    """
    problem = Problem(sizes=[4, 3, 4], activation="tanh")
    pool, w = problem.pool(), problem.models(3)
    rates, rho = np.array([[0.05], [0.1], [0.02]]), np.array([[0.0], [0.3], [2.0]])
    steps, center = np.array([[8], [5], [0]]), 0.5 * w
    x, m, v = w.copy(), np.zeros_like(w), np.zeros_like(w)
    for t in range(1, 9):
        g = pool.ask(ObjectivesGradients, x)[1] + rho * (x - center)
        if optimizer == "sgd":
            step = g
        elif optimizer == "momentum":
            step = m = 0.9 * m + g
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        x = np.where(t <= steps, x - rates * step, x)
    # Batches of four are all rows of these clients.
    how = steps[:, 0], rates[:, 0], optimizer, batch_size, center, rho[:, 0]
    found = pool.ask(LocalUpdate, w, *how)
    assert_allclose(found, x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "batch_size"), [("sgd", None), ("momentum", 3), ("adam", 3)]
)
@pytest.mark.parametrize("layers", [[2], [1], [1, 2], [0, 2]])
def test_frozen_layers_stay_and_the_others_train_as_if_nothing_was(layers, batch_size, optimizer):
    """Steps of some layers are those of all whose other gradients are zero."""
    p = Problem(sizes=[6, 9, 4])
    model, ((block, _, _),) = p.bind(), p.pool()._site._blocks
    w = p.models(3)
    trained = np.zeros(model.n_params, dtype=bool)
    for k in layers:
        trained[list(model.layer_slices().values())[k]] = True
    seeds = None if batch_size is None else np.arange(3, dtype=np.uint64)
    job = np.full(3, 7), np.full(3, 0.05), None, np.zeros(3), optimizer, batch_size, seeds
    found = train(model, block, w.copy(), *job, TrainingTerms(trained))
    plain = p.bind()
    model.gradient = lambda block, w, work: trained * plain.gradient(block, w)
    wanted = train(model, block, w.copy(), *job)
    assert_array_equal(found[:, ~trained], w[:, ~trained])
    assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [{"optimizer": "adam"}, {"batch_size": 2}])
def test_monotone_is_for_gradient_descent_on_all_rows(bad):
    pool = Problem().pool()
    with pytest.raises(ValueError, match="monotone=True"):
        pool.ask(LocalUpdate, pool.start(), 1, 0.1, monotone=True, **bad)
