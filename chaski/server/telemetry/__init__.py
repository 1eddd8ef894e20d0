"""Records of requests to models, and the metrics and traces that are made from them."""
