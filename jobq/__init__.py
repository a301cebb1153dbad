"""Empty until the public names land."""
