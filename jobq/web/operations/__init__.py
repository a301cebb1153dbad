"""Preview, apply and undo operations on many messages. This package doesn't use HTTP.

A preview freezes messages: it stores their ids and digests. An operation changes only frozen messages whose content
is still the same. Each operation is stored in one hash, so any dashboard process can show, stop or continue it.
"""
