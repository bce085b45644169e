-- KEYS: record. ARGV: locked_by, the newest fire time us that may remain or "", keep ms; for history: runs to keep.
-- Reply: 1; 0: the record has another locked_by.
-- PEXPIRE comes first: see release. Where the ACL refuses it, the lock is freed all the same.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1], 'lock_until', 'locked_by', 'fencing_token', 'last_fire_time', 'vote_by')
local lock_until, last_fire_time = number(record[1], 'lock_until') or 0, number(record[4], 'last_fire_time')

if record[5] == ARGV[1] then
    redis.call('HDEL', KEYS[1], 'vote_by', 'vote_until') -- on a quorum: a late confirmation finds no vote
end
if record[2] ~= ARGV[1] then
    return 0
end
redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[1],
    'lock_until', string.format('%.0f', math.min(lock_until, now)),
    'released_token', record[3])
if ARGV[2] ~= '' and last_fire_time and last_fire_time > tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[1], 'last_fire_time', ARGV[2])
end
return give_run_back(1, ARGV[4])
