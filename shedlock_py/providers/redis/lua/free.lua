-- KEYS: record. ARGV: its token or "", its locked_by, the newest fire time us that may remain or "". Reply: 1; 0: the record
-- is another one, is not held, or was released and its fire time is not to be given back. The record expires as it would
-- have. HGET, and not HMGET, so that an ACL can leave this script to operators.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = redis.call('HGET', KEYS[1], 'fencing_token') or ''
local lock_until = number(redis.call('HGET', KEYS[1], 'lock_until'), 'lock_until') or 0

if token ~= ARGV[1] or (redis.call('HGET', KEYS[1], 'locked_by') or '') ~= ARGV[2] or lock_until <= now then
    return 0
end
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'released_token') == token then
    return 0
end
redis.call('HDEL', KEYS[1], '') -- there is none; but with its memory full, Redis refuses HSET to a script that has not written
redis.call('HSET', KEYS[1], 'lock_until', string.format('%.0f', now), 'freed_token', token) -- not released_token: see release
if ARGV[3] ~= '' then
    redis.call('HSET', KEYS[1], 'last_fire_time', ARGV[3])
end
return 1
