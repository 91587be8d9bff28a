"""Mixed models in lme4's language: :func:`fit` takes a formula and a frame.

Needs the package formulae (the extra ``formula``).
"""

from ._lme4 import FormulaModel, fit

__all__ = ["FormulaModel", "fit"]
