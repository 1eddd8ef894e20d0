"""Files and batches of OpenAI's API. The server answers batches in the background."""
