"""Operations on many messages: found and frozen, previewed, applied, undone. No HTTP in here.

An operation acts on the list of messages that was frozen for its preview, never on what matches later, and on each
only if it is still as previewed. Everything about it is in one hash at the server, so any process of the dashboard
shows it, stops it, and goes on with it where another one was killed.
"""
