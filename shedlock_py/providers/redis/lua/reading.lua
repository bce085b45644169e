-- Prepended to every script (IN_FRONT in commands.py): defines number(), unless_foreign() and server_ids().

-- The number in a field of a lock record; nil: the record has no such field. Anything else, or a number too large to be exact,
-- is an error: taken for a number it could hold the lock for ever, or free it.
local function number(value, field)
    if not value then
        return nil
    end
    local limit = field == 'last_fire_time' and 1e18 or 2^53 -- fire times are compared only
    if not string.match(value, '^-?%d+$') or math.abs(tonumber(value)) >= limit then
        error(field .. ' of this lock record is not a number of microseconds or a token: \'' .. string.sub(value, 1, 40)
            .. '\'. Read it with HGETALL ' .. KEYS[1] .. ', and delete the key if the lock is not held.', 0)
    end
    return tonumber(value)
end

-- The reply of a pcall that read a key; false: the key has another type, so it belongs to another program.
local function unless_foreign(reply)
    if not reply.err then
        return reply
    end
    if not string.find(reply.err, 'WRONGTYPE') then
        error(reply.err, 0)
    end
    return false
end

-- For a quorum: what a server changes when it restarts, and when it takes over or gets its data from another one.
local function server_ids()
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '',
        string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
end

