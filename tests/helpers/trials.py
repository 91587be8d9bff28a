"""How much of what could be tried is tried in a run."""

import os

from hypothesis import settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def some(values, few):
    """The first `few` of the values; all with HYPOTHESIS_PROFILE=thorough."""
    values = list(values)
    return values if THOROUGH else values[:few]


def spread(values, few):
    """About so many of the values, by odd steps as tables alternate; all as above."""
    values = list(values)
    return values if THOROUGH else values[:: (len(values) // few) | 1]


def one_a_method(names):
    """One class of each method in turn, as they share their code; or all, as above."""
    methods = {}
    for name in sorted(names):
        method = name.removesuffix("Classifier").removesuffix("Regressor")
        methods.setdefault(method, []).append(name)
    turns = enumerate(methods.values())
    kinds = [every if THOROUGH else [every[k % len(every)]] for k, every in turns]
    return sum(kinds, [])


def examples(few, **more):
    """So many examples of a property; ten times as many as above."""
    return settings(max_examples=10 * few if THOROUGH else few, **more)
