"""Loading a model: its engine, its files, its sizes, and the memory that it needs."""
