"""External monitoring of jobq: middleware, and readers of events."""
