"""Networks of other people: parts that only they have, and the conversion of their weights."""
