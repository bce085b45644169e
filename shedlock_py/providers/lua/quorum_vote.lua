-- KEYS: record, node. ARGV: locked_by, vote ms, fire time us or "", longest lease ms. Reply: {kind, detail, …}:
-- {1, candidate token, run id}: voted for us; {0, locked_by}: held; {2, locked_by}: voted for another; {3, ""}: this
-- fire time ran; {4, ms}: quarantined for so long, as this server was emptied or restarted and may have forgotten a lease.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1],
    'lock_until', 'locked_by', 'fencing_token', 'last_fire_time', 'vote_by', 'vote_until')
local token, last_fire_time = tonumber(record[3] or 0), record[4]
local node = redis.call('HMGET', KEYS[2], 'run_id', 'quarantined_until', 'joined')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local quarantined_until = tonumber(node[2] or 0)

if node[1] ~= run_id then
    quarantined_until = now + ARGV[4] * 1000
    redis.call('HSET', KEYS[2], 'run_id', run_id, 'quarantined_until', string.format('%.0f', quarantined_until))
end

if tonumber(record[1] or 0) > now then
    return {0, record[2]}
end
if record[5] and record[5] ~= ARGV[1] and tonumber(record[6]) > now then
    return {2, record[5]}
end
if ARGV[3] ~= '' and last_fire_time and tonumber(last_fire_time) >= tonumber(ARGV[3]) then
    return {3, ''}
end
if quarantined_until > now then
    return {4, math.ceil((quarantined_until - now) / 1000)}
end

if not node[3] then
    redis.call('HSET', KEYS[2], 'joined', '1')
end
redis.call('HSET', KEYS[1], 'vote_by', ARGV[1], 'vote_until', string.format('%.0f', now + ARGV[2] * 1000))
if not record[2] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- nothing but the vote is in there
end
return {1, math.max(token + 1, now), run_id}
