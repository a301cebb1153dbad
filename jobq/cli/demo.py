"""`jobq demo`: see jobq work on real input."""
