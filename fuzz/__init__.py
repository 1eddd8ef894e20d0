"""Fuzzing: one command feeds changed inputs to everything in chaski that reads bytes of others.

python -m fuzz --seconds 600              all targets
python -m fuzz gguf --seconds 60          one target
python -m fuzz gguf --input FILE          one input, to repeat a finding
"""
