"""The private server of a project: a Valkey or Redis server that jobq starts if no URL is set."""
