"""Checks for those who add to skcfl, and what they are made with."""

from ._strict import StrictFederation

__all__ = ["StrictFederation"]
