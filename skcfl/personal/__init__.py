"""Server half of the personal methods: a model per client beside a shared one."""
