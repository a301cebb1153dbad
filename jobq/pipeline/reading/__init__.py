"""What the data source reads: a module per kind of view, plans made by the driver, batches by executors."""
