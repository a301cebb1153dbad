"""Read the views of the data source. The driver plans partitions; executors read batches."""
