"""Receipts of answers: their format, their chain of hashes, and their signatures.

A receipt names everything that determined an answer. Whoever has the model can compute the answer again and
compare it; `chaski.runner.receipts` does so. docs/receipts.md describes the format.
"""
