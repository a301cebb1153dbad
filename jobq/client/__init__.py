"""Layer 1, with which every protocol talks to the server: connections, scripts, numbered calls, waits and rights."""
