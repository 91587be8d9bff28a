"""Server half of the personal methods: a model a client beside a shared one."""
