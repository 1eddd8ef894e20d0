"""The text and the tools that make the bundled guide."""
