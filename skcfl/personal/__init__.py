"""Server half of the personal methods: a model per client beside a shared one."""

from __future__ import annotations
