"""HTTP requests: access control, endpoints, logging, and the form of answers and errors."""
