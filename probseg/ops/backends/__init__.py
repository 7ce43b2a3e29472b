"""Implementations of the two attention primitives; ``reference`` specifies the others."""
