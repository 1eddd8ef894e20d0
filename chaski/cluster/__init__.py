"""Models on several machines: replicas, and which of them answers a request.

`routing.py` chooses a replica, and `block_index.py` knows what each one holds. `model.py` is a model that
several replicas answer, `resuming.py` continues answers of replicas that died, `links.py` carries calls and
replies.
Ray places, starts and watches the replicas (`deployment.py`, `replica.py`, `directory.py`) and the nodes of
those that are split (`shards.py`), and `gpus.py` asks for their GPUs; nothing else imports it. The server
(`connection.py`) has a process that talks to Ray (`ray_process.py`).
"""
