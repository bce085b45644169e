-- KEYS: record. ARGV: locked_by, hold ms, keep ms, fencing token, the holder's clock us. Reply: 1; 0: the record has
-- another locked_by, or the lease has ended or was released. An extension that a later one has overtaken changes nothing: it
-- may be shorter than the later one.
-- PEXPIRE comes first: see release.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1], 'lock_until', 'locked_by', 'fencing_token', 'released_token', 'extended_at')

if record[2] ~= ARGV[1] or record[3] ~= ARGV[4] or record[4] == record[3] then
    return 0
end
if (number(record[1], 'lock_until') or 0) <= now then
    return 0
end
if (number(record[5], 'extended_at') or 0) > tonumber(ARGV[5]) then
    return 1
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ARGV[2] + ARGV[3]))
redis.call('HSET', KEYS[1], 'lock_until', string.format('%.0f', now + ARGV[2] * 1000), 'extended_at', ARGV[5])
return 1
