"""Image encoders compared with llama.cpp's mtmd on the same files."""
