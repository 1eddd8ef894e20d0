"""Services that answer typed requests with typed events, in the same way for every API and engine."""
