-- KEYS: records. ARGV: none. Reply: for each key all fields and values of the record; none where there is no lock record.
local reply = {}
for number, key in ipairs(KEYS) do
    local record = redis.pcall('HGETALL', key)
    reply[number] = record.err and {} or record
end
return reply
