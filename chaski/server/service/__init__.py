"""What handlers ask for: typed requests in, typed events out, whatever the API and whoever computes."""
