"""Model architectures, one per file; each file reads like the paper it implements."""
