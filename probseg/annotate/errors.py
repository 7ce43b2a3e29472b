"""Why a request of a client cannot be carried out."""

from __future__ import annotations


class RequestError(ValueError):
    """A client's request is invalid; the message says what was expected."""


class MissingError(KeyError):
    """There is no such photograph or object."""
