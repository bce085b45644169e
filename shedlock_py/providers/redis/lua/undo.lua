-- KEYS: record. ARGV: locked_by, the newest fire time us that may remain or "", keep ms. Reply: 1; 0: it is not ours.
-- PEXPIRE comes first: see release. Where the ACL refuses it, the lock is freed all the same.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1], 'lock_until', 'locked_by', 'fencing_token', 'last_fire_time')

if record[2] ~= ARGV[1] then
    return 0
end
local lock_until = math.min(number(record[1], 'lock_until') or 0, now)
local last_fire_time = number(record[4], 'last_fire_time')
redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[1],
    'lock_until', string.format('%.0f', lock_until),
    'released_token', record[3])
if ARGV[2] ~= "" and last_fire_time and last_fire_time > tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[1], 'last_fire_time', ARGV[2])
end
return 1
