"""Checks of the errors of wrong input."""

import pytest


def refused(error, action, *parts):
    """Assert that the action raises the error with all parts in its message; return the message."""
    with pytest.raises(error) as caught:
        action()
    message = str(caught.value)
    for part in parts:
        assert str(part) in message
    return message
