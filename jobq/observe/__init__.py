"""What watches jobq from outside: middleware, and readers of events."""
