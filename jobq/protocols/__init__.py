"""Queue protocols of other systems. Each is compatible with its system's clients, and can be used alone."""
