"""Regression trees as arrays: which leaf a row is in, and what a forest predicts.

A tree is an array (max_leaf_nodes, 5).  It begins with one leaf, number 0; row k of the array
splits a leaf in two, and the right one gets the number k.  Row 0 splits nothing.
"""

import numpy as np

#: Columns of a tree: the leaf that is split (-1 for none), the feature and the largest value of
#: it that stays left; the value of leaf k and the total weight of its rows.
LEAF, FEATURE, THRESHOLD, VALUE, WEIGHT = range(5)


def no_trees(max_leaf_nodes):
    """An array of no trees."""
    return np.zeros((0, max_leaf_nodes, 5))


def empty_tree(max_leaf_nodes):
    """A tree of one leaf of value 0."""
    tree = np.zeros((max_leaf_nodes, 5))
    tree[:, LEAF] = -1.0
    return tree


def padded(trees, max_leaf_nodes):
    """The same trees in an array of room for more leaves."""
    out = np.array([empty_tree(max_leaf_nodes)] * len(trees)).reshape(-1, max_leaf_nodes, 5)
    out[:, : trees.shape[1]] = trees
    return out


def splits_of(tree):
    """Numbers, leaves, features and thresholds of the splits of a tree."""
    for k in np.flatnonzero(tree[:, LEAF] >= 0).tolist():
        yield k, int(tree[k, LEAF]), int(tree[k, FEATURE]), tree[k, THRESHOLD]


def leaves_of(X, tree, cache=None):
    """Leaf of each row, (n_rows,).

    A cache, a dict of these rows, has the leaves of the last tree: the first splits that this one
    shares with it are not made again.
    """
    known, leaf = ({} if cache is None else cache).get("leaves", (tree[:1], None))
    n = 1 + int((known[:, LEAF] >= 0).sum())
    if leaf is None or not np.array_equal(known[:n, :VALUE], tree[:n, :VALUE]):
        n, leaf = 1, np.zeros(len(X), dtype=np.intp)
    leaf = leaf.copy()
    for k, parent, feature, threshold in splits_of(tree):
        if k >= n:
            leaf[(leaf == parent) & (X[:, feature] > threshold)] = k
    if cache is not None:
        cache["leaves"] = tree, leaf
    return leaf


def forest_outputs(X, trees, n_outputs, cache=None):
    """Sums of the values of trees (n_trees, max_leaf_nodes, 5) at each row, (n_rows, n_outputs).

    Trees come in rounds, one tree of each output after the other. A cache, a dict of these rows,
    has the sums of the last call: of trees that these begin with they are not computed again.
    """
    known, total = ({} if cache is None else cache).get("forest", (trees[:0], None))
    if total is None or not np.array_equal(known, trees[: len(known)]):
        known, total = trees[:0], np.zeros((n_outputs, len(X)))
    total = total.copy()
    for k, tree in enumerate(trees[len(known) :]):
        total[k % n_outputs] += tree[leaves_of(X, tree), VALUE]
    if cache is not None:
        cache["forest"] = trees, total
    return total.T


def in_units(trees, mean, scale):
    """Trees of features x, of those of ``(x - mean) / scale``."""
    trees = trees.copy()
    feature = trees[:, :, FEATURE].astype(np.intp)
    is_split = trees[:, :, LEAF] >= 0
    moved = mean[feature] + scale[feature] * trees[:, :, THRESHOLD]
    trees[:, :, THRESHOLD] = np.where(is_split, moved, trees[:, :, THRESHOLD])
    return trees


def dependence(trees, feature, x):
    """Mean value of trees over the rows, one feature set to values, (n_values,).

    Other features are averaged over by the weights of the leaves, as by ``method="recursion"`` of
    scikit-learn's ``partial_dependence``.
    """
    total = np.zeros(len(x))
    for tree in trees:
        weight, splits, shares = tree[:, WEIGHT].copy(), list(splits_of(tree)), {}
        for k, parent, *_ in reversed(splits):
            below = weight[parent] + weight[k]
            shares[k] = weight[k] / below if below > 0 else 0.5
            weight[parent] = below
        at = np.zeros((len(tree), len(x)))
        at[0] = 1.0
        for k, parent, j, threshold in splits:
            right = at[parent] * ((x > threshold) if j == feature else shares[k])
            at[k], at[parent] = right, at[parent] - right
        total += tree[:, VALUE] @ at
    return total
