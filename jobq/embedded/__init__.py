"""The private server of a project: a Valkey or Redis that jobq starts if no URL is set."""
