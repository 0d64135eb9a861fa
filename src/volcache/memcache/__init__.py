"""
The memcached protocol, on the same cache as HTTP.

`protocol.py` turns bytes into commands and results into bytes, without a socket or a
thread; `commands.py` has both; `executor.py` does what a command asks for; `listener.py`
has the sockets.
"""
