"""Choices among models: what competes, who judges, and the simplest within a margin."""
