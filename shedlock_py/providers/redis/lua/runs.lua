-- KEYS: record. ARGV: none. Reply: all fields and values of the record.
return redis.call('HGETALL', KEYS[1])
