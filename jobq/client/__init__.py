"""Layer 1: how every protocol talks to the server: connections, scripts, numbered calls, waits, rights."""
