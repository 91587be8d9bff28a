"""True if a loss is what the local models take it for."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._checks import Count, real_array
from .._typing import RandomState, Targets, validate_params
from ..models.losses import LOSSES, Loss, make_loss
from ._comparing import require, require_close, sent

# Size of predictions around zero, and the step of differences.
SIZE, STEP = 3.0, 1e-5


@validate_params(
    {
        "loss": [Loss, StrOptions(set(LOSSES))],
        "n_classes": [Count(2, 10**6), None],
        "n_rows": [Count(2, 10**6)],
        "random_state": ["random_state"],
    }
)
def check_loss(
    loss: Loss | str,
    y: Targets = None,
    *,
    n_classes: int | None = None,
    n_rows: int = 60,
    random_state: RandomState = 0,
) -> None:
    """Check that a loss is what the local models and the proofs take it for.

    Derivatives against finite differences; bounds of the curvature, also after a move; that the
    conjugate and the value meet Fenchel's inequality, with equality at derivatives, and the
    conjugate is no less than the largest difference; projections onto its domain; what the loss
    says of itself, and of targets in other units; shapes, types, broadcasting, extreme
    predictions, pickling, and that arguments are not changed.

    Parameters
    ----------
    loss : Loss or str
        An object, or the name of one of the package's losses with default parameters.
    y : array-like of shape (n_rows,), default=None
        Targets to check at, class codes for classifiers.  None draws them from what the loss says
        of its range.
    n_classes : int or None, default=None
        Number of classes; None is 2 for classifiers.
    n_rows : int, default=60
        How many targets are drawn.
    random_state : int, RandomState instance or None, default=0
        Source of targets and predictions.

    Raises
    ------
    AssertionError
        If something does not hold; it says what, and where.
    ValueError
        If an argument is not valid.

    See Also
    --------
    skcfl.models.losses.Loss : What a loss has to have.

    Examples
    --------
    >>> from skcfl.models.losses import Huber, SquaredError
    >>> from skcfl.testing import check_loss
    >>> check_loss(Huber(delta=2.0))
    >>> check_loss("log_loss", n_classes=4)

    A derivative that is not one:

    >>> class Wrong(SquaredError):
    ...     def gradient(self, z, y):
    ...         return 2.0 * (z - y)
    >>> check_loss(Wrong())
    Traceback (most recent call last):
        ...
    AssertionError: Wrong(): gradient is not the derivative of value (60 of 60 entries): ...
    """
    rng = check_random_state(random_state)
    loss = make_loss(loss, n_classes)
    loss._validate_params()
    if loss.classifier and n_classes is None:
        n_classes = 2
    y = _draw_targets(loss, n_classes, n_rows, rng) if y is None else _given(y, loss, n_classes)
    loss.check_target(y)
    case = _Case(loss, y, n_classes, rng)
    for check in (
        _check_description,
        _check_derivatives,
        _check_curvature,
        _check_moves,
        _check_fenchel,
        _check_conjugate,
        _check_units,
        _check_forms,
        _check_extremes,
    ):
        check(case)


def _given(y, loss, n_classes):
    """Targets that a user gives, checked."""
    values = real_array(y, "y", ndim=1)
    if len(values) < 2:
        raise ValueError(f"y must have at least two entries, got {len(values)}.")
    if loss.classifier and not np.isin(values, np.arange(n_classes)).all():
        raise ValueError(
            f"y must hold class codes from 0 to {n_classes - 1} for {loss!r}, got "
            f"{np.unique(values)[:5].tolist()}."
        )
    return np.asarray(y)


class _Case:
    """A loss, encoded targets (q, n) and predictions (C, n) about them."""

    def __init__(self, loss, y, n_classes, rng):
        self.loss, self.raw, self.n_classes, self.rng = loss, y, n_classes, rng
        self.C = loss.n_outputs(n_classes)
        self.y = loss.encode(y, n_classes, np.float64).T
        self.z = rng.normal(scale=SIZE, size=(self.C, len(y)))

    def says(self, text):
        return f"{self.loss!r}: {text}"

    def at(self, z=None):
        return ("z", self.z if z is None else z), ("y", self.raw)

    def unit(self, a):
        e = np.zeros_like(self.z)
        e[a] = 1.0
        return e

    def matrices(self, z, damping=0.0):
        """Second derivatives (n, C, C)."""
        H = np.zeros((z.shape[1], self.C, self.C))
        for a, outputs, h in self.loss.curvature_blocks(z, self.y, damping):
            ends = isinstance(outputs, slice) and outputs.stop == a + 1
            text = "curvature_blocks must yield a, outputs, h with a slice that ends with a"
            require(ends, self.says(text))
            H[:, a, outputs] = H[:, outputs, a] = h.T
        return H


def _draw_targets(loss, n_classes, n_rows, rng):
    if loss.classifier:
        return rng.randint(n_classes, size=n_rows)
    if loss.target_range == "real":
        return rng.normal(scale=SIZE, size=n_rows)
    y = np.round(rng.exponential(SIZE, size=n_rows), 1)
    y[0] = 0.0
    return y + 0.1 * (loss.target_range == "positive")


def _check_description(case):
    loss, says = case.loss, case.says
    ranges = {"real", "non-negative", "positive"}
    require(loss.target_range in ranges, says(f"target_range must be one of {sorted(ranges)}"))
    require(loss.degree > 0, says("degree must be positive"))
    require(loss.max_curvature > 0, says("max_curvature must be positive"))
    typical = loss.typical_curvature(np.array([0.5, 2.0]))
    finite = np.isfinite(typical) & (np.asarray(typical) > 0)
    require(finite, says("typical_curvature must be positive and finite"))
    if loss.target_range != "real":
        _refuses(case, -1.0)
    if loss.target_range == "positive":
        _refuses(case, 0.0)
    output = loss.output(case.z.T)
    require(np.shape(output) == (len(case.raw),), says("output must have shape (n_rows,)"))
    if loss.classifier:
        known = (output >= 0) & (output < case.n_classes)
        require(known, says("output must be class codes"), ("output", output))
    else:
        link = {"identity": lambda z: z, "log": np.exp}.get(loss.link)
        if link is not None:
            text = says(f"output must invert the {loss.link} link")
            require_close(output, link(case.z[0]), text, rtol=1e-12)
    if loss.has_proba:
        proba = loss.proba(case.z.T)
        require_close(
            proba.sum(axis=1),
            np.ones(len(proba)),
            says("probabilities must add up to 1"),
            rtol=1e-9,
        )
    if loss.unknown_scale:
        unit = loss.prior_unit(0.5, 2.0)
        require(np.isfinite(unit) and unit > 0, says("prior_unit must be positive"))


def _refuses(case, target):
    try:
        case.loss.check_target(np.append(case.raw, target))
    except ValueError:
        return
    raise AssertionError(
        case.says(f"check_target must refuse {target:g}, as the target_range is "
                  f"{case.loss.target_range!r}")
    )  # fmt: skip


def _check_derivatives(case):
    loss, z, y = case.loss, case.z, case.y
    gradient = loss.gradient(z, y)
    require(gradient.shape == z.shape, case.says("gradient must have the shape of z"))
    for a in range(case.C):
        e = STEP * case.unit(a)
        slope = (loss.value(z + e, y) - loss.value(z - e, y)) / (2 * STEP)
        size = 1.0 + np.abs(loss.value(z, y)) + np.abs(gradient[a])
        bend = _largest(case.matrices(z))
        # The derivative changes by its curvature at most, at a kink.
        near = np.abs(slope - gradient[a]) <= 1e-6 * size + STEP * bend
        text = case.says("gradient is not the derivative of value")
        require(near, text, ("got", gradient[a]), ("expected", slope), *_of(case.at(), a))
    u = case.rng.normal(size=z.shape)
    ahead = (loss.gradient(z + STEP * u, y) - gradient) / STEP
    behind = (gradient - loss.gradient(z - STEP * u, y)) / STEP
    # At a kink of the derivative the sides differ: nothing to compare with there.
    smooth = np.isclose(ahead, behind, rtol=1e-2, atol=1e-3)
    require(smooth.mean() > 0.5, case.says("gradient must be smooth at most predictions"))
    product = loss.curvature_product(z, y, u)
    size = 1.0 + np.abs(product) + np.abs(gradient)
    near = np.abs(0.5 * (ahead + behind) - product) <= 1e-5 * size
    text = case.says("curvature_product is not the derivative of gradient")
    require(
        near | ~smooth, text, ("got", product), ("expected", 0.5 * (ahead + behind)), *case.at()
    )


def _of(details, a):
    return [(name, values[a] if np.ndim(values) == 2 else values) for name, values in details]


def _largest(H):
    return np.linalg.eigvalsh(H).max(axis=1)


def _check_curvature(case):
    loss, z, y, says = case.loss, case.z, case.y, case.says
    for damping in (0.0, 0.3, 1.0):
        H = case.matrices(z, damping)
        for b in range(case.C):
            product = loss.curvature_product(z, y, case.unit(b), damping)
            text = says("curvature_blocks and curvature_product differ")
            require_close(H[:, :, b].T, product, text, rtol=1e-10, atol=1e-13)
        R = loss.curvature_factors(z, y, damping)
        text, scale = says("curvature_blocks and curvature_factors differ"), 1.0 + np.abs(H).max()
        require_close(R @ R.transpose(0, 2, 1), H, text, rtol=1e-10, atol=1e-12 * scale)
    H = case.matrices(z)
    values = np.linalg.eigvalsh(H)
    scale = 1.0 + np.abs(values).max(axis=1)
    require(values.min(axis=1) >= -1e-10 * scale, says("the loss must be convex"))
    bounded = values.max(axis=1) <= loss.max_curvature * (1 + 1e-10)
    require(bounded, says("max_curvature must bound the curvature"), ("got", values.max(axis=1)))
    constant = bool((np.ptp(H, axis=0) == 0).all())
    bend = loss.gradient(2 * z, y) - 2 * loss.gradient(z, y) + loss.gradient(0 * z, y)
    constant &= np.allclose(bend, 0.0, atol=1e-9 * (1.0 + np.abs(loss.gradient(z, y)).max()))
    one = constant and np.allclose(H, np.eye(H.shape[-1]), atol=1e-12)
    require(loss.quadratic == one, says("quadratic must say whether the curvature is 1"))
    if case.C > 1:
        free = np.allclose(loss.value(z + 1.7, y), loss.value(z, y), atol=1e-9)
        require(loss.coupled == free, says("coupled must say whether a common shift is free"))
    if not loss.coupled:
        text = says("curvature_product must be curvature times its argument")
        require_close(
            loss.curvature_product(z, y, np.ones_like(z)), loss.curvature(z, y), text, rtol=1e-12
        )
        none, some, full = (loss.newton_curvature(z, y, d) for d in (0.0, 0.4, 1.0))
        require_close(none, loss.curvature(z, y), says("newton_curvature without damping"), rtol=0)
        text = says("newton_curvature must be linear in its damping")
        require_close(some, none + 0.4 * (full - none), text, rtol=1e-9, atol=1e-12)
        moved = (full > none).all(axis=0)
        step = case.rng.normal(scale=SIZE, size=z.shape)
        rise = loss.value(z + step, y) - loss.value(z, y)
        parabola = (loss.gradient(z, y) * step + 0.5 * full * step**2).sum(axis=0)
        above = (rise <= parabola + 1e-9 * (1.0 + np.abs(rise))) | ~moved
        require(above, says("the parabola of the damped curvature must lie above the loss"))


def _check_moves(case):
    """Steadiness, ceiling and floor, which proofs rest on."""
    loss, z, y, says = case.loss, case.z, case.y, case.says
    H = case.matrices(z)
    floor = loss.floor(z, y)
    least = np.linalg.eigvalsh(H)
    # A vector added to all coupled outputs has no curvature.
    least = least[:, 1] if loss.coupled else least[:, 0]
    require(floor <= least + 1e-12, says("floor must be below the curvature"), ("floor", floor))
    for size in (1e-3, 0.1, 1.0, 5.0):
        step = case.rng.normal(size=z.shape)
        step *= size / np.linalg.norm(step, axis=0)
        r = np.full(z.shape[1], size)
        share, ceiling = loss.steadiness(z, y, r), loss.ceiling(z, y, r)
        require(share.shape == r.shape, says("steadiness must have a number for each row"))
        require(ceiling.shape == r.shape, says("ceiling must have a number for each row"))
        there = case.matrices(z + case.rng.uniform(size=z.shape[1]) * step)
        top = _largest(there)
        text = says(f"ceiling must bound the curvature after a move of {size:g}")
        require(top <= ceiling * (1 + 1e-9), text, ("ceiling", ceiling), ("curvature", top))
        left = np.linalg.eigvalsh(there - share[:, None, None] * H).min(axis=1)
        text = says(f"steadiness must be what is left of the curvature after a move of {size:g}")
        require(left >= -1e-9 * (1e-3 + top), text, ("steadiness", share))


def _check_fenchel(case):
    loss, y, says = case.loss, case.y, case.says
    for size in (0.1, 1.0, 3.0):
        z = size * case.z
        value, a = loss.value(z, y), loss.gradient(z, y)
        tight = loss.conjugate(a, y)
        require(
            np.isfinite(tight), says("conjugate must be finite at derivatives"), ("y", case.raw)
        )
        scale = 1.0 + np.abs(value) + np.abs(a * z).sum(axis=0) + loss.conjugate_terms(a, y)
        gap = (value + tight - (a * z).sum(axis=0)) / scale
        text = says(
            "value and conjugate must meet Fenchel's inequality with equality at gradients"
        )
        require(np.abs(gap) <= 1e-11, text, ("gap", gap), ("y", case.raw))
        other = np.roll(z, 1, axis=1) + 0.3
        value = loss.value(other, y)
        scale = scale + np.abs(value) + np.abs(a * other).sum(axis=0)
        gap = (value + tight - (a * other).sum(axis=0)) / scale
        require(gap >= -1e-11, says("Fenchel's inequality"), ("gap", gap), ("y", case.raw))
    if loss.grounded:
        require(loss.value(case.z, y) >= -1e-9, says("a grounded loss must not be negative"))
        with np.errstate(over="ignore"):
            least = _near_the_least(case)
            lowest = np.min([loss.value(z, y) for z in least], axis=0)
            # If it falls even there, the least value is out of reach.
            falling = np.abs(loss.gradient(least[0], y)).max(axis=0) > 1e-6
        text = says("the least value of a grounded loss must be 0")
        require(falling | (np.abs(lowest) <= 1e-3), text, ("got", lowest), ("y", case.raw))


def _near_the_least(case):
    """Predictions among which each row's loss comes near its least value."""
    if case.loss.classifier:
        own = np.asarray(case.raw)
        sign = np.where(own > 0, 1.0, -1.0)[None] if case.C == 1 else None
        if sign is None:
            sign = np.where(own == np.arange(case.C)[:, None], 1.0, -1.0)
        return [20.0 * sign]
    low, high = np.full_like(case.z, -1e6), np.full_like(case.z, 1e6)
    for _ in range(70):
        middle = 0.5 * (low + high)
        with np.errstate(over="ignore"):
            up = case.loss.gradient(middle, case.y) < 0
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    return [low, high]


def _check_conjugate(case):
    loss, y, says = case.loss, case.y, case.says
    inside = loss.gradient(case.z, y)
    text = says("project must not change slopes in the domain")
    require_close(loss.project(inside, y), inside, text, rtol=1e-11, atol=1e-13)
    a = inside + case.rng.normal(size=inside.shape)
    projected = loss.project(a, y)
    bound = loss.conjugate(projected, y)
    require(np.isfinite(bound), says("project must lead into the domain"), ("y", case.raw))
    again = loss.project(projected, y)
    require_close(again, projected, says("project must stay"), rtol=1e-11, atol=1e-13)
    within = np.isfinite(loss.conjugate(a, y))
    text = says("project must not change slopes in the domain")
    require_close(projected[:, within], a[:, within], text, rtol=1e-9, atol=1e-12)
    terms = loss.conjugate_terms(projected, y)
    require(terms >= np.abs(bound) * (1 - 1e-9) - 1e-12, says("conjugate_terms must be sizes"))
    # Against the definition: no prediction exceeds it, whatever the slope.
    found = loss.conjugate(a, y)
    for size in (0.3, 3.0, 30.0):
        for _ in range(5):
            z = case.rng.normal(scale=size, size=a.shape)
            with np.errstate(over="ignore"):
                value = loss.value(z, y)
            difference = (a * z).sum(axis=0) - value
            scale = 1.0 + np.abs(value) + np.abs(a * z).sum(axis=0)
            below = np.isinf(value) | (difference <= found + 1e-10 * scale)
            text = says("conjugate must not be less than <a, z> - value(z)")
            require(below, text, ("conjugate", found), ("difference", difference))


def _check_units(case):
    """Standardised targets have the same loss over its unit, up to a constant of each row."""
    loss, mean, scale = case.loss, 37.0, 8.0
    if loss.classifier:
        return
    loss = loss.in_units(scale) if loss.has_units else loss
    if loss.link == "identity":
        at, spread, y = mean, scale, mean + scale * case.y
    else:
        at, spread, y = loss.raw(mean), 1.0, mean * case.y
    small, unit = loss.standardised(mean, scale), loss.unit(mean, scale)
    there = at + spread * case.z
    for name, of, terms, factor in (
        ("value", lambda loss, z, y: loss.value(z, y) - loss.value(z[:, ::-1], y), loss.terms, 1),
        ("gradient", lambda loss, z, y: loss.gradient(z, y), loss.slope_terms, spread),
    ):
        own, wanted = unit * of(small, case.z, case.y), factor * of(loss, there, y)
        text = case.says(f"{name} of standardised targets, times unit, must be that of the others")
        largest = max(np.abs(terms(z, y)).max() for z in (there, there[:, ::-1]))
        atol = 1e-9 * factor * largest
        require_close(own, wanted, text, ("y", case.raw), rtol=1e-9, atol=atol)


def _check_forms(case):
    """Broadcasting, pickling, and unchanged arguments."""
    loss, z, y, says = case.loss, case.z, case.y, case.says
    kept = z.copy(), y.copy()
    slopes = loss.gradient(z, y)
    a = slopes.copy()
    loss.value(z, y), loss.curvature_product(z, y, z), loss.conjugate(a, y), loss.project(a, y)
    unchanged = (z == kept[0]).all() and (y == kept[1]).all() and (a == slopes).all()
    require(unchanged, says("arguments must not be changed"))
    shifted = np.stack([z, z + 1.0, -z])
    Z, Y = np.stack([shifted, shifted[::-1]]), np.stack([y, y])[:, None]
    value, gradient = loss.value(Z, Y), loss.gradient(Z, Y)
    require(value.shape == (2, 3, z.shape[1]), says("values must broadcast over models"))
    for k in range(3):
        text = says("values must not depend on what else is asked")
        require_close(value[0, k], loss.value(shifted[k], y), text, rtol=1e-12, atol=1e-14)
        require_close(
            gradient[1, 2 - k], loss.gradient(shifted[k], y), text, rtol=1e-12, atol=1e-14
        )
    copied = sent(loss)
    text = says("a pickled copy must be the same loss")
    require_close(copied.value(z, y), loss.value(z, y), text, rtol=0)


def _check_extremes(case):
    loss, says = case.loss, case.says
    signs = np.sign(case.z) * np.where(np.arange(case.z.shape[1]) % 2, 1.0, -1.0)
    for dtype in (np.float32, np.float64):
        y = loss.encode(case.raw, case.n_classes, dtype).T
        for size in (1.0, 1e2, 1e3):
            far = (size * signs).astype(dtype)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                results = {
                    "value": loss.value(far, y),
                    "gradient": loss.gradient(far, y),
                    "curvature_product": loss.curvature_product(far, y, np.ones_like(far)),
                }
            for name, result in results.items():
                where = f"{name} at predictions of size {size:g}"
                require(~np.isnan(result), says(f"{where} must not be NaN"))
                text = says(f"{where} must have the type of z, {far.dtype}, got {result.dtype}")
                require(result.dtype == dtype, text)
                if np.isfinite(loss.max_curvature):
                    require(np.isfinite(result), says(f"{where} must be finite"))
