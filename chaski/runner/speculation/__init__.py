"""Speculative decoding: proposing the next tokens, so that one batch can check several of them."""
