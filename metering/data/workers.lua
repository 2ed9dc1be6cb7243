-- Say that a worker lives, and count those that do.
--
-- KEYS[1]   wb:1:workers    sorted set: writer -> when it was seen last, ms of the store's clock
-- ARGV      the writer
-- returns   how many were seen in the last 20 s

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - 20000))
return redis.call('ZCARD', KEYS[1])
