"""Converts Hugging Face checkpoints to GGUF: names, configurations, tokenizers and types, as in llama.cpp.

A checkpoint is a folder with `config.json`, safetensors files and a tokenizer. One file of `families`
describes the specifics of each model; the other modules are shared.
"""
