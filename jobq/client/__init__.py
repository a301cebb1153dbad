"""Layer 1 contains the code that every protocol needs for connections, script calls, waits and access rights."""
