"""The wider family of attention mechanisms, which no preset uses."""
