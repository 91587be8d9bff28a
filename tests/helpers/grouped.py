"""Options of training and of records, put into the objects that hold them."""

import inspect

from skcfl import Record, Training

OBJECTS = {"training": Training, "record": Record}


def grouped(cls, **options):
    """Parameters of an estimator, from those and options of its objects by their own names."""
    flat = inspect.signature(cls).parameters
    for name, kind in OBJECTS.items():
        inside = [key for key in inspect.signature(kind).parameters if key in options]
        inside = {key: options.pop(key) for key in inside if key not in flat}
        if inside:
            options[name] = kind(**inside)
    return options
