"""Operations on many messages, which are frozen, previewed, applied and undone. This package doesn't use HTTP.

To freeze messages is to store their ids and digests. An operation only changes frozen messages whose content is still
the same. The server stores each operation in one hash, so any process of the dashboard can show, stop or continue it.
"""
