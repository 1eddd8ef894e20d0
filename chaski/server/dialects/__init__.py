"""How each API says things. Pure functions: JSON to typed requests, typed events to JSON."""
