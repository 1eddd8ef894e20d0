"""The fields of requests: their descriptions, their reader, and the treatment of all other fields."""
