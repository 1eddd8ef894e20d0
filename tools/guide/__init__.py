"""The texts and tools that make the bundled guide."""
