"""Strings and token ids: tokenizers, chat templates, parsers of answers. No tensors, no model, no network."""
