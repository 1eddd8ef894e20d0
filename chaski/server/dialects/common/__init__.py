"""Parts of requests that several dialects read in the same way."""
