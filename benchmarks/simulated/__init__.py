"""Simulated time: what replicas and split models would take on machines that are not at hand.

`replicas.py` routes conversations to replicas, `phases.py` computes prompts and answers on different ones,
and `shards.py` computes the batches of a model that several nodes share.
"""
