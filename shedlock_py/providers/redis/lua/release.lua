-- KEYS: record. ARGV: locked_by, ms that others are still kept out, keep ms; for history: runs to keep, outcome, error.
-- Reply: 1; 0: the record has another locked_by, or the lease had ended, so the run ended as lost.
-- PEXPIRE comes first: with its memory full, Redis refuses HSET to a script, unless the script has written before.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('HMGET', KEYS[1], 'lock_until', 'locked_by', 'fencing_token', 'released_token', 'vote_by')

if record[5] == ARGV[1] then
    redis.call('HDEL', KEYS[1], 'vote_by', 'vote_until') -- on a quorum: a late confirmation finds no vote
end
if record[2] ~= ARGV[1] then
    return end_run(0, ARGV[4], now, 'lost', ARGV[6])
end
if record[4] == record[3] then
    return 1 -- repeated because the reply was lost
end
if (number(record[1], 'lock_until') or 0) <= now then
    return end_run(0, ARGV[4], now, 'lost', ARGV[6])
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ARGV[2] + ARGV[3]))
redis.call('HSET', KEYS[1],
    'lock_until', string.format('%.0f', now + ARGV[2] * 1000),
    'released_token', record[3])
return end_run(1, ARGV[4], now, ARGV[5], ARGV[6])
