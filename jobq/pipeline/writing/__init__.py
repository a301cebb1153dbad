"""Write DataFrames to queues. Each row becomes one message, however often Spark runs a task again."""
