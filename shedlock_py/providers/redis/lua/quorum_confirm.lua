-- KEYS: record, node. ARGV: locked_by, hold ms, fire time us or "", token, "force", "recover" or "", keep ms, former token or
-- locked_by, memory; for history: runs to keep, next fire time us or "". Reply: 1; 0: refused. By force, the lock is taken from
-- any holder, but only if the record still has the former token ("": it has none), and the server has not forgotten anything
-- since quorum_read. To recover, the record must still be that of the former locked_by, whose run was not ended.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1],
    'lock_until', 'locked_by', 'fencing_token', 'last_fire_time', 'vote_by', 'vote_until', 'released_token', 'freed_token')
local is_held, token = (number(record[1], 'lock_until') or 0) > now, number(record[3], 'fencing_token') or 0
local last_fire_time, vote_until = number(record[4], 'last_fire_time'), number(record[6], 'vote_until') or 0

if is_held and record[2] == ARGV[1] and record[3] == ARGV[4] then
    return 1 -- repeated because the reply was lost
end
if token >= tonumber(ARGV[4]) then
    return 0 -- a take-over was here meanwhile, and may have ended already
end
if ARGV[5] == 'force' then
    local node = redis.call('HMGET', KEYS[2], 'run_id', 'quarantined_until')
    local run_id, replid = server_ids()
    if (record[3] or '') ~= ARGV[7] or run_id .. replid .. (node[1] or '') .. (node[2] or '') ~= ARGV[8] then
        return 0
    end
elseif is_held or record[5] ~= ARGV[1] or vote_until <= now then
    return 0
elseif ARGV[5] == 'recover' and (record[2] ~= ARGV[7] or record[7] == record[3] or record[8] == record[3]) then
    return 0
end

redis.call('HSET', KEYS[1],
    'lock_until', string.format('%.0f', now + ARGV[2] * 1000),
    'locked_at', string.format('%.0f', now),
    'locked_by', ARGV[1],
    'fencing_token', ARGV[4])
redis.call('HDEL', KEYS[1], 'vote_by', 'vote_until', 'extended_at')
if ARGV[3] ~= '' and not (last_fire_time and last_fire_time >= tonumber(ARGV[3])) then
    redis.call('HSET', KEYS[1], 'last_fire_time', ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ARGV[2] + ARGV[6]))
return begin_run(1, ARGV[9], now, ARGV[4], ARGV[10])
