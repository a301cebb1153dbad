"""Operations on many messages, which are frozen, previewed, applied and undone. This package doesn't use HTTP.

An operation acts only on messages that were frozen for its preview and are unchanged since then. One hash on the server
stores everything about an operation, so any process of the dashboard can show or stop the operation, or continue it
after another process was killed.
"""
