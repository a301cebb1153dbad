"""Layer 2: messages in Redis. Every change of state is made by one Lua script in `lua/queue`."""
