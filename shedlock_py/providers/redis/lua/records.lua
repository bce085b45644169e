-- KEYS: records. ARGV: none. Reply: the time in us, then for each key its fields, or nil where there is no lock record.
local time = redis.call('TIME')
local reply = {time[1] * 1000000 + time[2]}

for number, key in ipairs(KEYS) do
    local record = unless_foreign(redis.pcall('HMGET', key,
        'locked_by', 'locked_at', 'lock_until', 'fencing_token', 'last_fire_time', 'released_token', 'freed_token'))
    reply[number + 1] = record and record[1] and record
end
return reply
