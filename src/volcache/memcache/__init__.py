"""
The memcached protocol, on the same cache as HTTP.

`decoder.py` and its two kinds turn bytes into commands, `replies.py` turns results into
bytes, without a socket or a thread; `commands.py` has commands and results; `executor.py`
does what a command asks for; `listener.py` executes what the loops in C leave to Python.
"""
