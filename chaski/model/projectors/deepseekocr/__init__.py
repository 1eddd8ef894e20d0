"""DeepSeek-OCR's image encoder (Wei et al. 2025, arXiv 2510.18234): SAM, then CLIP on its features."""
