"""The models that requests name: the catalog, loading, and queues of requests."""
