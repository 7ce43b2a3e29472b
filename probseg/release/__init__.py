"""Publishing of models: cards, tables and facts."""
