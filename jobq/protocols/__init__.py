"""Other queues on the same foundations: wire-compatible, each whole by itself."""
