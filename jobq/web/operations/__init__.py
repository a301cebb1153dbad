"""Operations on many messages, which are frozen, previewed, applied and undone. This package doesn't use HTTP.

An operation acts only on the messages frozen for its preview, and on each only if it is unchanged since then.
Everything about it is in one hash at the server, so any process of the dashboard can show it, stop it, and continue
it if another process was killed.
"""
