-- KEYS: record, node. ARGV: locked_by, vote ms, fire time us or "", longest lease ms, tolerance us, former locked_by or "": the
-- claim recovers the run of that holder. Reply: {kind, detail, …}:
-- {1, candidate token, run id}: voted for this claim; {0, locked_by}: held; {2, locked_by}: voted for another; {3, ""}: this
-- fire time ran, or the run to be recovered was ended; {6, ""}: there is no such run here; {4, ms}: quarantined for so long, as this server was emptied or restarted and may have forgotten a lease;
-- {5, ""}: the fire time is later than the server's clock by more than the tolerance.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1],
    'lock_until', 'locked_by', 'fencing_token', 'last_fire_time', 'vote_by', 'vote_until', 'released_token', 'freed_token')
local lock_until, token = number(record[1], 'lock_until') or 0, number(record[3], 'fencing_token') or 0
local last_fire_time, vote_until = number(record[4], 'last_fire_time'), number(record[6], 'vote_until') or 0
local node = redis.call('HMGET', KEYS[2], 'run_id', 'quarantined_until', 'joined', 'replid')
local run_id, replid = server_ids()
local quarantined_until = tonumber(node[2] or 0)

if node[1] ~= run_id or node[4] ~= replid then
    quarantined_until = now + ARGV[4] * 1000
    redis.call('HSET', KEYS[2],
        'run_id', run_id,
        'replid', replid,
        'quarantined_until', string.format('%.0f', quarantined_until))
end

if ARGV[3] ~= '' and tonumber(ARGV[3]) > now + ARGV[5] then
    return {5, ''} -- held or not: see acquire
end
if lock_until > now then
    return {0, record[2]}
end
if record[5] and record[5] ~= ARGV[1] and vote_until > now then
    return {2, record[5]}
end
if ARGV[6] ~= '' then
    if record[2] ~= ARGV[6] then
        return {6, ''}
    end
    if record[7] == record[3] or record[8] == record[3] then
        return {3, ''}
    end
elseif ARGV[3] ~= '' and last_fire_time and last_fire_time >= tonumber(ARGV[3]) then
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
