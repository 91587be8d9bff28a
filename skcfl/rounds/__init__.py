"""Methods by communication rounds: the server holds a ClientPool and messages, never rows."""
