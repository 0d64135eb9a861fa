"""HTTP semantics: requests in, responses out. Neither sockets nor processes."""
