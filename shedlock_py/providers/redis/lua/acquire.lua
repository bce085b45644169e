-- KEYS: record. ARGV: locked_by, hold ms, fire time us or "", keep ms, tolerance us; for history: runs to keep, next
-- fire time us or "". Reply: fencing token; 0: held or this fire time ran; -1: the fire time is later than the server's clock by
-- more than the tolerance.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1], 'lock_until', 'locked_by', 'fencing_token', 'last_fire_time',
    'released_token')
local lock_until, token = number(record[1], 'lock_until') or 0, number(record[3], 'fencing_token') or 0
local last_fire_time = number(record[4], 'last_fire_time')

if record[2] == ARGV[1] then -- it was granted: repeated because the reply was lost; or late, when it was released
    return record[5] == record[3] and 0 or token
end
if ARGV[3] ~= "" and tonumber(ARGV[3]) > now + ARGV[5] then
    return -1 -- held or not, so that the replica with the wrong clock gets an error
end
if lock_until > now or (ARGV[3] ~= "" and last_fire_time and last_fire_time >= tonumber(ARGV[3])) then
    return 0
end

token = math.max(token + 1, now)
redis.call('HSET', KEYS[1],
    'lock_until', string.format('%.0f', now + ARGV[2] * 1000),
    'locked_at', string.format('%.0f', now),
    'locked_by', ARGV[1],
    'fencing_token', string.format('%.0f', token),
    'extended_at', '0')
if ARGV[3] ~= "" then
    redis.call('HSET', KEYS[1], 'last_fire_time', ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ARGV[2] + ARGV[4]))
return begin_run(token, ARGV[6], now, token, ARGV[7])
