"""Access to the dashboard: identities, users, tokens, sessions, and the checks of every request."""
