"""Who may use the dashboard: identities, users, tokens, sessions, and what every request must satisfy first."""
