"""
The hot tier: copies of the most wanted records in memcached.

It can only make things faster: what it does not have, cannot say in time or is not sure
of is a miss. Knows neither the store nor HTTP nor settings; records are bytes to it.
"""
