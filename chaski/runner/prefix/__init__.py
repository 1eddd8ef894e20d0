"""The prefix cache: slots, and what a new prompt takes over from them."""
