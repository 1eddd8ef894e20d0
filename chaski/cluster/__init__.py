"""Models on several machines: replicas, and the routing of requests to them.

`routing.py` chooses a replica, and `block_index.py` records the prompt blocks that each replica holds.
`model.py` is a model served by several replicas, `resuming.py` continues answers of replicas that died, and
`links.py` transports calls and replies. Ray places, starts and watches the replicas (`deployment.py`,
`replica.py`, `directory.py`) and the shards of split replicas (`shards.py`); `gpus.py` queries their GPUs.
Only these modules import Ray. The server (`connection.py`) runs a separate process that talks to Ray
(`ray_process.py`).
"""
