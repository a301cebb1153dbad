"""Operations on many messages: found and frozen, previewed, applied, undone. No HTTP in here.

An operation acts only on the messages frozen for its preview, and on each only if it is unchanged since then.
Everything about it is in one hash at the server, so any process of the dashboard can show it, stop it, and continue
it if another process was killed.
"""
