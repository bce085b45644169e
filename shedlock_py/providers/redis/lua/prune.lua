-- KEYS: records. ARGV: unused ms, the fire time us of run_once, whose keys stay. Reply: for each key 1 where a record that had ended so long ago was deleted, else 0.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = {}

for number, key in ipairs(KEYS) do
    local record = unless_foreign(redis.pcall('HMGET', key, 'lock_until', 'vote_until', 'last_fire_time')) or {}
    local lock_until, vote_until = tonumber(record[1] or ''), tonumber(record[2] or 0) -- nil for an odd value: kept
    local is_old = lock_until and lock_until <= now - ARGV[1] * 1000
    local is_wanted = not vote_until or vote_until > now -- by a claim of a quorum
    local is_key = tonumber(record[3] or '') == tonumber(ARGV[2])
    reply[number] = is_old and not is_wanted and not is_key and redis.call('DEL', key) or 0
end
return reply
