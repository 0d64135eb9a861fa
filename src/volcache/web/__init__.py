"""HTTP: the WSGI application and the server that runs it."""
