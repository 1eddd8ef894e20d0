"""One architecture a file; the file reads like its paper."""
