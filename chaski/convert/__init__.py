"""Hugging Face checkpoints → GGUF: names, configurations, tokenizers and types. Writes what llama.cpp writes.

A checkpoint is a folder with `config.json`, safetensors files and a tokenizer. One file of `families` says
what is special about a model; the rest is common to all.
"""
