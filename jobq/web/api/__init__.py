"""The JSON API: `/api/v1`, the same figures as the pages, for programs with a token."""
