"""Publishing of models: cards, tables, facts, and the conversion of published weights."""
