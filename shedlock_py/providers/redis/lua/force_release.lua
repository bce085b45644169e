-- KEYS: record. ARGV: keep ms. Reply: 1; 0: it was not held. PEXPIRE comes first: see release.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if (number(redis.call('HGET', KEYS[1], 'lock_until'), 'lock_until') or 0) <= now then
    return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], 'lock_until', string.format('%.0f', now))
return 1
