"""Jobs are functions that a worker runs. This package encodes their calls, and runs messages."""
