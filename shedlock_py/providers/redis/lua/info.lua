-- KEYS: one key, so that a cluster picks its node. ARGV: none. Reply: what the server says of its memory, persistence and replication.
return redis.call('INFO', 'memory') .. redis.call('INFO', 'persistence') .. redis.call('INFO', 'replication')
