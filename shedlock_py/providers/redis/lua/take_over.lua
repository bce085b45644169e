-- KEYS: record. ARGV: locked_by, hold ms, fire time us or "", keep ms, tolerance us, former token, former locked_by or "";
-- for history: runs to keep, next fire time us or "". Reply: fencing token; 0: the record has not the former token ("": it has
-- none) any more; -1: the fire time is later than the server's clock by more than the tolerance. With a former locked_by, it is a
-- recovery: 0 as well if the record has another one, is held, or was released or freed.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1], 'locked_by', 'fencing_token', 'last_fire_time', 'lock_until',
    'released_token', 'freed_token')
local token, last_fire_time = number(record[2], 'fencing_token') or 0, number(record[3], 'last_fire_time')

if record[1] == ARGV[1] then
    return token -- repeated because the reply was lost; or late, when it was released or undone
end
if (record[2] or "") ~= ARGV[6] then
    return 0
end
if ARGV[7] ~= "" then
    local is_held = (number(record[4], 'lock_until') or 0) > now
    if record[1] ~= ARGV[7] or is_held or record[5] == record[2] or record[6] == record[2] then
        return 0
    end
end
if ARGV[3] ~= "" and tonumber(ARGV[3]) > now + ARGV[5] then
    return -1
end

token = math.max(token + 1, now)
redis.call('HSET', KEYS[1],
    'lock_until', string.format('%.0f', now + ARGV[2] * 1000),
    'locked_at', string.format('%.0f', now),
    'locked_by', ARGV[1],
    'fencing_token', string.format('%.0f', token),
    'extended_at', '0')
if ARGV[3] ~= "" and not (last_fire_time and last_fire_time >= tonumber(ARGV[3])) then
    redis.call('HSET', KEYS[1], 'last_fire_time', ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ARGV[2] + ARGV[4]))
return begin_run(token, ARGV[8], now, token, ARGV[9])
