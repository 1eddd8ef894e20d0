"""Below HTTP's meaning: addresses, connections, and bodies that arrive in time and in bounded memory."""
