"""Strings and token ids: tokenizers, chat templates, answer parsers. No tensors, no model, no network."""
