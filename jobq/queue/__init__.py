"""Layer 2: messages in Redis. Every state change is one Lua script under `lua/queue`."""
