-- KEYS: record. ARGV: its newest fire time us. Reply: 1; 0: it has another one, or none.
if redis.call('HGET', KEYS[1], 'last_fire_time') ~= ARGV[1] then
    return 0
end
return redis.call('HDEL', KEYS[1], 'last_fire_time')
