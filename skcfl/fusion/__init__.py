"""Methods that fuse models: the server holds a ClientPool and messages, never rows."""
