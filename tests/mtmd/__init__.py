"""Encoders of images beside llama.cpp's mtmd, on the same files."""
