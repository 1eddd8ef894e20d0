"""Simulate the time of replicas and split models on machines that are not available.

`replicas.py` routes conversations to replicas, `phases.py` computes prompts and answers on different ones,
and `shards.py` computes the batches of a model that several nodes share.
"""
