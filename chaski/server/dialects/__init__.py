"""The APIs' requests and replies as pure functions: JSON to typed requests, typed events to JSON."""
