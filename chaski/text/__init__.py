"""Strings and token ids: tokenizers and chat templates. No tensors, no model, no network."""
