"""A request over HTTP: who may http, how it is answered, how answers and errors are framed."""
