"""DataFrame to queue: each row becomes one message, however often Spark runs a task again."""
