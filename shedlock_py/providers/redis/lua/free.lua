-- KEYS: record. ARGV: its token or "". Reply: 1; 0: it has another token, or is not held. The record expires as it would
-- have. HGET, and not HMGET, so that an ACL can leave this script to operators.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = redis.call('HGET', KEYS[1], 'fencing_token') or ''
local lock_until = number(redis.call('HGET', KEYS[1], 'lock_until'), 'lock_until') or 0

if token ~= ARGV[1] or lock_until <= now then
    return 0
end
redis.call('HDEL', KEYS[1], '') -- there is none; but with its memory full, Redis refuses HSET to a script that has not written
redis.call('HSET', KEYS[1], 'lock_until', string.format('%.0f', now), 'freed_token', token) -- not released_token: see release
return 1
