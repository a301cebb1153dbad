"""Other queue protocols. Each is compatible with the clients of the original, and can be used alone."""
