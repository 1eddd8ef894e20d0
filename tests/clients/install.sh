#!/bin/sh
# Installs the programs and packages that tests/clients runs, into build/clients: several hundred megabytes.
# Needs npm, node 20 or newer, and the network. Then: python -m pytest -m oracle tests/clients
set -eu
cd "$(dirname "$0")/../.."
mkdir -p build/clients
cd build/clients

[ -f package.json ] || npm init --yes > /dev/null
npm install --no-audit --no-fund @anthropic-ai/claude-code @openai/codex \
    opencode-ai @continuedev/cli \
    ollama openai @anthropic-ai/sdk \
    ai ai-sdk-ollama @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic zod
node node_modules/@anthropic-ai/claude-code/install.cjs

# Each gets its own environment, since their requirements conflict.
install() {
    name=$1
    shift
    [ -d "python/$name" ] || python3 -m venv "python/$name"
    "python/$name/bin/pip" install --quiet "$@"
}
mkdir -p python
install litellm litellm mcp  # which it imports for tools
install instructor instructor
install pydantic_ai 'pydantic-ai-slim[openai,anthropic]'
install llama_index llama-index-core llama-index-llms-ollama llama-index-embeddings-ollama \
    llama-index-llms-openai-like
install langchain langchain langchain-ollama langchain-openai langchain-anthropic
install aider aider-chat
