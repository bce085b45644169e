-- KEYS: record, node. ARGV: none. Reply: {the time in us, fencing token or "", the token that follows it, 1; 0: this server
-- was emptied or restarted, and may have forgotten a greater one, what changes when it forgets}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = redis.call('HGET', KEYS[1], 'fencing_token')
local node = redis.call('HMGET', KEYS[2], 'run_id', 'quarantined_until', 'replid')
local run_id, replid = server_ids()
local is_same = node[1] == run_id and node[3] == replid
return {
    now, token or '', math.max((number(token, 'fencing_token') or 0) + 1, now),
    is_same and tonumber(node[2] or 0) <= now and 1 or 0,
    run_id .. replid .. (node[1] or '') .. (node[2] or ''),
}
