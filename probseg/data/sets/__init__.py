"""Readers of published data sets in their own layouts, imported one by one when asked for."""
