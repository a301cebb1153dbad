"""DataFrame to queue: rows become messages, each once, however often Spark runs a task again."""
