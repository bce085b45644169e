-- KEYS: records. ARGV: none. Reply: for each key all fields and values of the record; none where there is no lock record.
local reply = {}
for number, key in ipairs(KEYS) do
    reply[number] = unless_foreign(redis.pcall('HGETALL', key)) or {}
end
return reply
