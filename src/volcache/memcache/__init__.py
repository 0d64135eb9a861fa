"""
The memcached protocol, on the same cache as HTTP.

C executes the commands (front/memcache.h). Here are its sockets, its log lines, and what
only Python knows: `service.py` answers what commands ask for, `statistics.py` answers
`stats`, `listener.py` has the thread that may wait.
"""
