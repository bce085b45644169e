-- KEYS: node. ARGV: the run id of a server that may join, or "" to read only. Reply: {1 if it has joined, run id}.
local run_id, replid = server_ids()

if ARGV[1] == run_id and run_id ~= '' then
    redis.call('HSET', KEYS[1], 'run_id', run_id, 'replid', replid, 'quarantined_until', '0', 'joined', '1')
end
return {redis.call('HEXISTS', KEYS[1], 'joined'), run_id}
