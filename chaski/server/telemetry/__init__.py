"""Records of requests to models, and what is made of them: metrics for Prometheus."""
