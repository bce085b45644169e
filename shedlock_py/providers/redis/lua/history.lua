-- Prepended to every script (IN_FRONT in commands.py): defines begin_run(), end_run() and give_run_back(). Run history, where
-- the provider keeps it: the fields run:0, run:1, … of a lock record are a ring, and run_slot has the number of the newest.
-- run_size is the size of the ring: the largest that a replica has requested. A run is text with a line each for its fencing
-- token, start, fire time, next fire time and locked_by; and, once it has ended, for its end, outcome and error. A run that was
-- given back is empty.
-- Runs are written last, and no error here stops a script: its reply becomes a text with the error.
local function with_error(reply, written)
    return type(written) == 'table' and written.err and string.format('%.0f ', reply) .. written.err or reply
end

local function newest_slot() -- -1: there is none
    local slot = redis.pcall('HMGET', KEYS[1], 'run_slot')[1]
    return slot and string.match(slot, '^%d%d?%d?$') and tonumber(slot) or -1
end

local function ring_size(requested)
    local kept = redis.pcall('HMGET', KEYS[1], 'run_size')[1]
    return math.max(tonumber(requested), kept and string.match(kept, '^%d%d?%d?%d?$') and tonumber(kept) or 0)
end

local function begin_run(reply, size, now, token, next_fire_time) -- size: how many runs to keep; nil: without history
    if not size then
        return reply
    end
    size = ring_size(size)
    local slot = (newest_slot() + 1) % size
    local run = table.concat({string.format('%.0f\n%.0f', token, now), ARGV[3], next_fire_time, ARGV[1]}, '\n')
    return with_error(reply, redis.pcall('HSET', KEYS[1], 'run:' .. slot, run, 'run_slot', slot, 'run_size', size))
end

local function unended_run(size) -- the run of this locked_by, the newest first
    local newest, ending = newest_slot(), '\n' .. ARGV[1]
    size = ring_size(size)
    for back = 0, size - 1 do
        local slot = (newest - back) % size
        local run = redis.pcall('HMGET', KEYS[1], 'run:' .. slot)[1]
        if run and string.sub(run, -string.len(ending)) == ending then
            return slot, run, size
        end
    end
end

local function end_run(reply, size, now, outcome, error)
    if not size then
        return reply
    end
    local slot, run = unended_run(size)
    if not slot then
        return reply
    end
    run = table.concat({run, string.format('%.0f', now), outcome, error}, '\n')
    return with_error(reply, redis.pcall('HSET', KEYS[1], 'run:' .. slot, run))
end

local function give_run_back(reply, size)
    if not size then
        return reply
    end
    local slot, _, kept = unended_run(size)
    if not slot then
        return reply
    end
    return with_error(reply, redis.pcall('HSET', KEYS[1], 'run:' .. slot, '', 'run_slot', (slot - 1) % kept))
end

