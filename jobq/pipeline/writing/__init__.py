"""Write DataFrames to queues. Each row becomes one message, even if Spark runs a task again."""
