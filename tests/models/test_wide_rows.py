"""Fewer rows than columns: nothing of the size of the columns squared, dense rows or not."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from skcfl import ConvexClusteredFLClassifier
from skcfl.calls.curvatures import Prox, Solve
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.calls.proofs_asked import Conjugate
from skcfl.clients.blocks import Block, SparseBlock, make_blocks
from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP, LinearModel, _convex, _linear, _local_model
from skcfl.models._row_space import RowSpace

# Least squares are factorised.
CLASSES = {"huber": None, "poisson": None, "log_loss": 2, "softmax": 3, "squared_hinge": 2}


def draw(n_columns, seed=0, n_clients=3, n_rows=12):
    rng = np.random.RandomState(seed)
    X = sparse.random_array((n_clients * n_rows, n_columns), density=0.1, format="csr", rng=seed)
    return X, rng.randint(3, size=X.shape[0]), np.repeat(np.arange(n_clients), n_rows)


def assert_same(found, wanted, rtol, atol):
    for a, b in zip(found, wanted, strict=True):
        assert_allclose(a, b, rtol=rtol, atol=atol)


def make_pool(X, y, codes, loss, alpha=0.01):
    n_classes = CLASSES[loss]
    y = y if n_classes != 2 else (y > 0).astype(int)
    model = LinearModel("log_loss" if loss == "softmax" else loss, alpha=alpha)
    target = y if n_classes else y.astype(float)
    return open_rows(model.bind(X.shape[1], n_classes), X, target, codes, 3)


@pytest.mark.parametrize("loss", CLASSES)
@pytest.mark.parametrize("dense", [False, True])
def test_same_answers_as_with_exact_hessians(loss, dense, monkeypatch):
    X, y, codes = draw(60)
    pool = make_pool(X.toarray() if dense else X, y, codes, loss)
    exact = make_pool(X.toarray(), y, codes, loss)
    start = np.random.RandomState(1).standard_normal((3, pool.n_params))
    slopes = pool.ask(ObjectivesGradients, 0.1 * start)[1]
    # Gradients at some models, where the conjugates are attained.
    wanted = [exact.ask(Solve)[0], exact.ask(Prox, start, 0.3), exact.ask(Conjugate, slopes)]
    spectrum = exact.spectrum()
    for module in (_convex, _linear):
        monkeypatch.setattr(module, "MAX_DENSE", 10)
    used, kind = [], type(pool.model)
    own = kind._row_preconditioner
    monkeypatch.setattr(kind, "_row_preconditioner", lambda *a: used.append(1) or own(*a))
    got = [pool.ask(Solve)[0], pool.ask(Prox, start, 0.3), pool.ask(Conjugate, slopes)]
    assert used
    assert_same(got, wanted, rtol=1e-5, atol=1e-6)
    assert_allclose(pool.spectrum(), spectrum, rtol=1e-8, atol=1e-10)


def rows_in_other_units(rng):
    """Equal rows, rows of zeros, columns in other units; a client without rows."""
    X = rng.standard_normal((18, 9)) * np.logspace(-1, 1, 9)
    X[2], X[3], X[8] = X[1], 0.0, X[7]
    return X, np.repeat(np.arange(5), [7, 6, 1, 0, 4])


def few_columns(rng):
    """Columns that a client does not touch."""
    X = sparse.random_array((25, 300), density=0.02, format="csr", rng=0)
    return X, np.repeat(np.arange(3), [8, 5, 12])


#: Rows, and what takes the short cut: along the directions of rows, or in the columns touched.
SHORT_CUTS = {
    "directions": (rows_in_other_units, LinearModel, "_row_space", lambda model, block: None),
    "columns": (few_columns, SparseBlock, "own_columns", lambda block: None),
}


TRIED = [("directions", loss) for loss in CLASSES]
TRIED += [("columns", loss) for loss in ("squared_error", "poisson", "softmax")]


@pytest.mark.parametrize(("short_cut", "loss"), TRIED)
@pytest.mark.parametrize(("dtype", "fit_intercept"), [(float, True), (np.float32, False)])
def test_short_cuts_change_nothing(short_cut, loss, dtype, fit_intercept):
    """A client's part of a block too, and where only the pull is convex."""
    make_rows, owner, name, without = SHORT_CUTS[short_cut]
    rng = np.random.RandomState(0)
    X, codes = make_rows(rng)
    (n, d), m, some, n_classes = X.shape, codes[-1] + 1, [codes[-1], 0], CLASSES.get(loss)
    y = rng.randint(n_classes or 3, size=n)
    y = y if n_classes else y.astype(dtype)
    loss = "log_loss" if loss == "softmax" else loss
    used, own = [], getattr(owner, name)

    def noted(*args):
        used.append(own(*args))
        return used[-1]

    for alpha in (0.0, 0.05):
        bound = LinearModel(loss, alpha=alpha, fit_intercept=fit_intercept)
        bound = bound.bind(d, n_classes, dtype=dtype)
        centres, answers = rng.standard_normal((m, bound.n_params)), []
        for whole in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, without if whole else noted)
                pool = open_rows(bound, X.astype(dtype), y, codes, m)
                slopes = pool.ask(ObjectivesGradients, 0.01 * centres)[1].astype(float)
                part = pool.subset(some)
                found = [pool.ask(Prox, centres, 0.3), part.ask(Prox, centres[some], 0.3)]
                if alpha:
                    # The intercept of a class that a client has not is where rounding ends.
                    solved = pool.ask(Solve)[0], part.ask(Solve)[0]
                    found += [w.reshape(len(w), bound.n_outputs, -1)[..., :d] for w in solved]
                    found.append(pool.ask(Conjugate, slopes))
                answers.append(found)
        rtol, atol = (1e-5, 1e-6) if sparse.issparse(X) else (1e-6, 1e-8)
        assert_same(*answers, rtol, atol)
    assert any(each is not None for each in used)


def test_large_coordinates_are_replaced_to_the_last_digit():
    """Slopes over a small penalty are far larger than the models that end there."""
    rng = np.random.RandomState(0)
    X = rng.standard_normal((2, 4, 9))
    block = Block(X, np.zeros((2, 1, 4)), np.ones((2, 4)), np.arange(2), np.array([4, 3]))
    space = RowSpace.of(block, 8)
    start = rng.standard_normal((2, 3, 9))
    W, inner = start.copy(), space.inside(rng.standard_normal((2, 3, 9)))
    W[:, :, :8] += 1e12 * rng.standard_normal((2, 3, 4)) @ X[:, :, :8]
    space.put(W, inner)
    assert_allclose(space.inside(W), inner, atol=1e-13)
    assert_allclose(block.forward(W), space.block.forward(inner), atol=1e-12)
    basis = np.linalg.svd(X[0, :, :8])[2][4:]
    assert_allclose((W - start)[0, :, :8] @ basis.T, 0.0, atol=0.01)


def test_the_columns_of_each_client():
    """Clients that touch fewer columns than others have some that they do not touch."""
    rows = [0, 0, 1, 2, 2, 2, 3]
    columns = [5, 9, 5, 0, 1, 8, 2]
    X = sparse.csr_array((np.arange(1.0, 8.0), (rows, columns)), shape=(4, 12))
    (block,) = make_blocks(X, np.zeros((4, 1)), np.ones(4), np.array([0, 0, 1, 1]), 2)
    own = block.own_columns()
    assert own.columns.shape == (2, 4)
    assert (np.diff(own.columns, axis=1) > 0).all()
    for i in range(2):
        assert_array_equal(own.block.dense()[i], block.dense()[i][:, own.columns[i]])
        assert own.block.dense()[i].sum() == block.dense()[i].sum()
    assert block.take([1]).cache["own columns"].columns.tolist() == [own.columns[1].tolist()]
    few = sparse.csr_array(X[:, :5])
    (block,) = make_blocks(few, np.zeros((4, 1)), np.ones(4), np.array([0, 0, 1, 1]), 2)
    assert block.own_columns() is None  # more than half of the columns


@pytest.mark.parametrize("n_columns", [7, 40])
def test_products_of_sparse_blocks(n_columns):
    X, y, codes = draw(n_columns)
    # The same entry twice counts as its sum.
    twice = sparse.csr_array(
        (np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr), shape=X.shape
    )
    weights = np.random.RandomState(0).uniform(0.5, 2.0, len(codes))
    for rows in (X, twice):
        sparse_blocks = make_blocks(rows, y[:, None], weights, codes, 3)
        dense_blocks = make_blocks(X.toarray(), y[:, None], weights, codes, 3)
        for a, b in zip(sparse_blocks, dense_blocks, strict=True):
            assert isinstance(a, SparseBlock) and (a.clients == b.clients).all()
            scale = np.random.RandomState(1).uniform(size=(len(a.clients), n_columns))
            squares = np.einsum("cnd,cn->cd", b.X**2, b.weights)
            gram = np.einsum("cnd,cd,cmd->cnm", b.X, scale, b.X)
            for block in (a, b):
                assert_allclose(block.squares(), squares)
                assert_allclose(block.row_gram(scale), gram, atol=1e-12)


def test_no_dense_copy_of_wide_sparse_rows(monkeypatch):
    X, y, codes = draw(500)

    dense = SparseBlock.dense

    def narrow(block):
        assert block.shape[2] <= 1, "only the intercept's column may be dense"
        return dense(block)

    monkeypatch.setattr(SparseBlock, "dense", narrow)
    options = {"lam": 0.01, "graph": "complete", "alpha": 0.01, "tol": 1e-4}
    model = ConvexClusteredFLClassifier(**options).fit(X, y > 0, groups=codes)
    assert model.dual_gap_ <= 1e-4 * abs(model.objective_)
    monkeypatch.undo()
    # Units differ, as sparse rows are not centred: compare without.
    model.set_params(standardize=False)
    values = [model.fit(rows, y > 0, groups=codes).objective_ for rows in (X, X.toarray())]
    assert values[0] == pytest.approx(values[1], rel=2e-4)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-6, 0.01])
def test_sparse_rows_of_least_squares_stay_sparse(fit_intercept, alpha, monkeypatch):
    X, y, codes = draw(300)
    model = LinearModel("squared_error", alpha=alpha, fit_intercept=fit_intercept)
    v = np.random.RandomState(1).standard_normal((3, 300 + fit_intercept))
    answers = []
    for form in (sparse.csr_array, lambda X: X.toarray()):
        pool = open_rows(model.bind(300, None), form(X), y.astype(float), codes, 3)
        some = pool.subset([2, 0])
        proxes = pool.ask(Prox, v, 0.1), some.ask(Prox, v[[2, 0]], 1e-3)
        answers.append([pool.ask(Solve)[0], *proxes])
        monkeypatch.setattr(SparseBlock, "dense", None)
    assert_same(*answers, rtol=1e-8, atol=1e-9)
    monkeypatch.undo()
    # Rows that are nearly the same, and hardly a penalty: objectives are near their minima, as the
    # curvature is at least alpha.
    alike = X.toarray()
    alike[1::12] = alike[::12] * (1.0 + 1e-6)
    model = LinearModel("squared_error", alpha=3e-8, fit_intercept=fit_intercept)
    pool = open_rows(model.bind(300, None), sparse.csr_array(alike), y.astype(float), codes, 3)
    values, slopes = pool.ask(ObjectivesGradients, pool.ask(Solve)[0])
    free = slopes[:, 300:]  # intercepts, which no penalty holds
    assert np.abs(free).max(initial=0.0) < 1e-8
    assert ((slopes[:, :300] ** 2).sum(axis=1) / (2 * 3e-8) < 1e-6 * values).all()
    # Too small a penalty for Gram matrices: of dense rows.
    block = make_blocks(sparse.csr_array(X), y[:, None].astype(float), np.ones(36), codes, 3)[0]
    decay = np.full(300, 1e-12)
    assert not _linear.Sparse(block, decay).enough


@pytest.mark.parametrize("model", [LinearModel(), MLP((4,), precision="double")])
def test_losses_of_many_models_are_computed_some_at_a_time(model, monkeypatch):
    rng, most = np.random.default_rng(0), []
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    model = model.bind(3, None)
    (block,) = make_blocks(model.design(X), y[:, None], np.ones(60), np.arange(60) % 4, 4)
    theta = rng.normal(size=(50, model.n_params))
    wanted, cls = [model.losses(block, theta), *model.best_response(block, theta)], type(model)
    name = "_all_losses" if cls is LinearModel else "losses_of_rows"
    compute = getattr(cls, name)

    def seen(model, block, some):
        most.append(len(some))
        return compute(model, block, some)

    monkeypatch.setattr(cls, name, seen)
    monkeypatch.setattr(_local_model, "LOSS_BYTES", 4 * 60 * 2)
    found = [model.losses(block, theta), *model.best_response(block, theta)]
    for values, others in zip(found, wanted, strict=True):
        assert_allclose(values, others, rtol=1e-12, atol=1e-14)
    assert sum(most) == 100 and max(most) == 2
