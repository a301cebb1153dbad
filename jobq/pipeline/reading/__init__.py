"""The views that the data source reads. The driver plans partitions; executors read batches."""
