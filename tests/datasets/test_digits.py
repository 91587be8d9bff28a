"""Rotations and the rotated digits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.datasets import load_digits

from skcfl.datasets import make_rotated_digits, rotate_images


@st.composite
def images(draw):
    side, n = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    layout = draw(st.sampled_from(["flat", "stack", "colour"]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    shape = {"flat": (side * side,), "stack": (side, side), "colour": (side, side, 3)}[layout]
    return rng.integers(0, 255, size=(n, *shape)).astype(draw(st.sampled_from(["u1", "f4"])))


@given(X=images(), a=st.integers(-6, 6), b=st.integers(-6, 6), seed=st.integers(0, 100))
def test_rotations_are_a_group_of_one_angle_or_one_an_image(X, a, b, seed):
    twice = rotate_images(rotate_images(X, 90 * a), 90 * b)
    assert_array_equal(twice, rotate_images(X, 90 * (a + b)))
    assert twice.dtype == X.dtype and twice.shape == X.shape
    assert_array_equal(rotate_images(X, 360), X)
    angles = 90 * np.random.default_rng(seed).integers(-4, 5, size=len(X))
    for i, one in enumerate(rotate_images(X, angles)):
        assert_array_equal(one, rotate_images(X[i : i + 1], int(angles[i]))[0])


def test_rotation_is_counter_clockwise_and_copies_images_of_any_shape():
    X = np.arange(12).reshape(1, 2, 6)
    assert not np.shares_memory(rotate_images(X, 0), X)
    assert_array_equal(rotate_images(X, 90)[0], np.rot90(X[0]))
    flat = rotate_images(X.reshape(1, -1), 90, image_shape=(2, 6))
    assert_array_equal(flat.reshape(6, 2), np.rot90(X[0]))
    both = np.concatenate([X, X])
    assert_array_equal(rotate_images(both, [90, 270])[1], np.rot90(X[0], 3))
    with pytest.raises(ValueError, match="only separately"):
        rotate_images(both, [0, 90])


@pytest.mark.parametrize(
    ("shape", "angle", "image_shape", "message"),
    [
        ((2, 4), 45, None, "angle must be a multiple of 90"),
        ((2, 4), [90, 45], None, "angle must be a multiple of 90"),
        ((2, 4), [90.0, 90.0], None, "angle must be a multiple of 90"),
        ((2, 4), [90], None, "one entry an image"),
        ((2, 6), 90, None, "image_shape must be given"),
        ((2, 6), 90, (2, 2), "image_shape must be"),
        ((2, 6), 90, (6,), "image_shape must be"),
        ((2, 2, 3), 90, (3, 2), "does not fit"),
        ((1, 2, 2, 2, 2), 90, None, "2, 3 or 4 dimensions"),
    ],
)
def test_bad_rotation(shape, angle, image_shape, message):
    with pytest.raises(ValueError, match=message):
        rotate_images(np.zeros(shape), angle, image_shape=image_shape)


@pytest.mark.parametrize(("copies", "scale"), [("one", True), ("all", False)])
def test_rotated_digits(copies, scale):
    digits = load_digits()
    data = make_rotated_digits(copies=copies, scale=scale, random_state=0)
    ids, client, sizes = np.unique(data.groups, return_inverse=True, return_counts=True)
    angles = data.angles[data.labels[client]]
    # turned back, each row is the image that index names
    original = digits.data / 16 if scale else digits.data
    assert_array_equal(rotate_images(data.X, -angles), original[data.index])
    assert_array_equal(data.y, digits.target[data.index])
    assert data.X.max() == (1 if scale else 16)
    # the angle in the id is the angle
    assert_array_equal([int(i[3:6]) for i in ids], data.angles[data.labels])
    assert_array_equal(data.labels, np.repeat(np.arange(4), 5))
    assert sizes.max() - sizes.min() <= 1
    once = np.bincount(data.index, minlength=len(digits.data))
    assert np.all(once == (1 if copies == "one" else 4))
    if copies == "all":
        assert len(np.unique(np.column_stack([data.index, angles]), axis=0)) == len(data.y)
    assert "4 clusters" in data.DESCR and "0, 90, 180, 270" in data.DESCR


def test_rotated_digits_options():
    data = make_rotated_digits([270, 0], [1, 2], samples_per_client=(5, 9), random_state=0)
    assert_array_equal(data.angles, [270, 0])
    # ids sort by angle, labels follow the order of angles
    assert_array_equal(
        np.unique(data.groups), ["rot000-client00", "rot000-client01", "rot270-client00"]
    )
    assert_array_equal(data.labels, [1, 1, 0])
    assert_array_equal(make_rotated_digits(2, 1).angles, [0, 180])
    assert make_rotated_digits(1, 1).labels.tolist() == [0]
    data = make_rotated_digits(id_format=None, random_state=0)
    assert_array_equal(np.unique(data.groups), np.arange(20))
    assert not np.array_equal(data.labels, np.sort(data.labels))
    rows = make_rotated_digits(shuffle=False, random_state=0, return_X_y_groups=True)
    assert len(rows) == 3 and (rows[2] == np.sort(rows[2])).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(n_rotations=5), "n_rotations.*range"),
        (dict(n_rotations=[0, 45]), "n_rotations must be multiples of 90"),
        (dict(n_rotations=[0, 360]), "n_rotations must be different modulo 360"),
        (dict(n_rotations=[]), "n_rotations"),
        (dict(clients_per_rotation=0), "clients_per_rotation.*range"),
        (dict(clients_per_rotation=[1, 2]), "clients_per_rotation must be an int or one entry"),
        (dict(samples_per_client=100), "asks for 2000 rows for 20 clients, but X has 1797"),
        (dict(clients_per_rotation=1000), "too few"),
        (dict(copies="two"), "copies"),
    ],
)
def test_bad_digits(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_rotated_digits(**kwargs)
