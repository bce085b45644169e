-- KEYS: node. ARGV: the run id of a server that may join, or "" to read only. Reply: {1 if it has joined, run id}.
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local replid = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''

if ARGV[1] == run_id and run_id ~= '' then
    redis.call('HSET', KEYS[1], 'run_id', run_id, 'replid', replid, 'quarantined_until', '0', 'joined', '1')
end
return {redis.call('HEXISTS', KEYS[1], 'joined'), run_id}
