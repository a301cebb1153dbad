"""Other queue protocols on the same foundations. Each is wire-compatible and can be used alone."""
