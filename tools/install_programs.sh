#!/bin/sh
# Installs the command-line programs and packages of others that tests/server/test_programs.py starts, below build/programs.
# Needs npm. Run from the root of the repository, then: pytest -m oracle tests/server/test_programs.py
set -e
mkdir -p build/programs
npm install --no-audit --no-fund --prefix build/programs \
    @openai/codex @anthropic-ai/claude-code @anthropic-ai/sdk \
    ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic ai-sdk-ollama zod
