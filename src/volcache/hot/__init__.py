"""
The hot tier: copies of frequently read records in memcached.

It affects speed only: an item that is absent, late or not provably current is a miss. It
depends neither on the store nor on HTTP nor on the settings; to it a record is bytes.
"""
