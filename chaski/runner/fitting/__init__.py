"""Planning a model before anything of it is loaded: its work, the machine, and the predicted rates."""
