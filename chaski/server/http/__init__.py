"""A request over HTTP: who may ask, how it is answered, how answers and errors are framed."""
