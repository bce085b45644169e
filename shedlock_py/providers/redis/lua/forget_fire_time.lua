-- KEYS: record. ARGV: none. Reply: 1; 0: it had none.
return redis.call('HDEL', KEYS[1], 'last_fire_time')
