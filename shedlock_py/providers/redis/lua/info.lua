-- KEYS: any of the server. ARGV: none. Reply: what the server says of its memory, persistence and replication.
return redis.call('INFO', 'memory') .. redis.call('INFO', 'persistence') .. redis.call('INFO', 'replication')
